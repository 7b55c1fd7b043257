// SPDX-License-Identifier: Apache-2.0

// Package bad has tests that go wrong in every way that `make test-vm` has to
// find. The go command does not see them below testdata unless it is told to:
//
//	bin/vm -tests test/vm/testdata/bad.txt 6.1
//
// must end with status 1 and a line for each of them.
package bad

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	// None of this is for a machine that somebody uses.
	if os.Getenv("EGRESSD_VM") != "1" {
		if len(os.Args) > 1 && os.Args[1] == "-test.list=." {
			os.Exit(m.Run())
		}
		fmt.Fprintln(os.Stderr, "only for machines of make test-vm")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func TestGood(t *testing.T) { t.Log("well") }

func TestFails(t *testing.T) { t.Error("wrong on purpose") }

func TestSkips(t *testing.T) { t.Skip("although nobody allowed it") }

func TestLeavesAProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHangs$")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestExits(t *testing.T) { os.Exit(0) }

func TestHangs(t *testing.T) {
	for {
		time.Sleep(time.Hour)
	}
}

func TestWarns(t *testing.T) {
	say(t, "/dev/kmsg", "<4>WARNING: CPU: 0 PID: 1 at somewhere.c:1 on purpose\n")
}

// TestPanicsTheKernel is the last one: nothing comes after it.
func TestPanicsTheKernel(t *testing.T) {
	say(t, "/proc/sysrq-trigger", "c")
	time.Sleep(time.Minute)
}

func say(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}
