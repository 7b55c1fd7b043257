// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cgroup"
	"github.com/egressd/egressd/loader"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"egressd": main,
		// The name under which the binary runs itself, /proc/self/exe.
		"exe": main,
	})
}

// TestScripts runs the stories in testdata, each with the whole binary.
//
// Beside the usual verbs they have
//
//	status N COMMAND…   run a command that must exit with that status
//	ready SOCKET        wait until the daemon on that admin socket is attached
//	origin              serve HTTP on a port of the loopback, named $PORT
//	taken               listen on a port of the loopback, named $TAKEN
//	gone PATH           fail if PATH is there
//	signal NAME         send SIGNAME to the daemon on admin.sock
//	waitfor REGEXP      wait until status of the daemon on admin.sock matches
//	enter COMMAND…      run a command in $CGROUP
//	keydir              name a key folder that may be made, $KEYDIR
//
// Scripts that need the condition root have a cgroup of their own, whose path
// from the root of the hierarchy is $CGROUP, and its folder $CGROUPDIR.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Setup: setup,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":  cmdStatus,
			"ready":   cmdReady,
			"origin":  cmdOrigin,
			"taken":   cmdTaken,
			"gone":    cmdGone,
			"enter":   cmdEnter,
			"keydir":  cmdKeyDir,
			"signal":  cmdSignal,
			"waitfor": cmdWaitFor,
		},
	})
}

// groups numbers the cgroups of scripts.
var groups atomic.Int64

func setup(e *testscript.Env) error {
	if os.Geteuid() != 0 {
		return nil
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("egressd-script-%d-%d", os.Getpid(), groups.Add(1))
	group, err := cgroup.Create(root, "/", name)
	if err != nil {
		return err
	}
	e.Defer(func() {
		if err := group.Kill(5 * time.Second); err != nil {
			e.T().Log(err)
		}
		if err := group.Remove(); err != nil {
			e.T().Log(err)
		}
	})
	e.Setenv("CGROUP", group.Path())
	e.Setenv("CGROUPDIR", filepath.Join(root, group.Path()))
	return nil
}

func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s: got exit status %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func cmdEnter(ts *testscript.TestScript, neg bool, args []string) {
	script := `echo $$ > "$CGROUPDIR/cgroup.procs" && exec "$@"`
	err := ts.Exec("sh", append([]string{"-c", script, "enter"}, args...)...)
	if neg != (err != nil) {
		ts.Fatalf("%s: got error %v", strings.Join(args, " "), err)
	}
}

func cmdKeyDir(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: keydir")
	}
	// Keys are on no disk, so the folder is not below that of the script.
	base, err := os.MkdirTemp("/dev/shm", "egressd-script-")
	ts.Check(err)
	ts.Defer(func() { ts.Check(os.RemoveAll(base)) }) // at which its keeper ends
	ts.Setenv("KEYDIR", filepath.Join(base, "keys"))
}

func cmdReady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready SOCKET")
	}
	client := admin.NewClient(ts.MkAbs(args[0]))
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s, err := client.Status(context.Background())
		if last = err; err == nil && s.Kernel.Attached && s.Kernel.Canary.OK {
			return
		}
	}
	ts.Fatalf("the daemon did not become ready: %v", last)
}

func cmdOrigin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: origin")
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "hello")
	})}
	go func() { _ = server.Serve(ln) }()
	ts.Defer(func() { _ = server.Close() })
	ts.Setenv("PORT", strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
}

func cmdTaken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: taken")
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = ln.Close() })
	ts.Setenv("TAKEN", strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || unix.SignalNum("SIG"+args[0]) == 0 {
		ts.Fatalf("usage: signal NAME")
	}
	s, err := admin.NewClient(ts.MkAbs("admin.sock")).Status(context.Background())
	ts.Check(err)
	ts.Check(unix.Kill(s.PID, unix.SignalNum("SIG"+args[0])))
}

func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor REGEXP")
	}
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	client := admin.NewClient(ts.MkAbs("admin.sock"))
	got := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s, err := client.Status(context.Background())
		ts.Check(err)
		if got = formatStatus(s, time.Now()); want.MatchString(got) {
			return
		}
	}
	ts.Fatalf("got status\n%s\nwant it to match %s", got, args[0])
}

func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	for _, path := range args {
		found, err := filepath.Glob(ts.MkAbs(path))
		ts.Check(err)
		if neg == (len(found) == 0) {
			ts.Fatalf("%s: got %v", path, found)
		}
	}
}
