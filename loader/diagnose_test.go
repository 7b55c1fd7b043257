// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Each program of the object is verified by name, with its kind.
func TestVerify(t *testing.T) {
	needRoot(t)
	all, err := Verify()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := loadEgress()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(spec.Programs) {
		t.Errorf("got %d programs, want %d", len(all), len(spec.Programs))
	}
	kinds := make(map[string]string)
	for _, v := range all {
		kinds[v.Program] = v.Kind
		if v.Err != nil {
			t.Errorf("%s: %v", v.Program, v.Err)
		}
	}
	for program, want := range map[string]string{
		"connect4":     "CGroupSockAddr CGroupInet4Connect",
		"sendmsg6":     "CGroupSockAddr CGroupUDP6Sendmsg",
		"sock_release": "CGroupSock CgroupInetSockRelease",
		"account_open": "Tracing TraceIter",
		"whoami":       "Syscall",
	} {
		if kinds[program] != want {
			t.Errorf("%s: got kind %q, want %q", program, kinds[program], want)
		}
	}
}

// Programs of others are told from those of egressd, also of those above.
func TestProgramsAt(t *testing.T) {
	root, name := testCgroup(t)
	below := filepath.Join(name, "below")
	if err := os.Mkdir(filepath.Join(root, below), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, filepath.Join(root, below)) })
	if all, err := ProgramsAt(root, []string{below}); err != nil || len(all) != 0 {
		t.Errorf("before: got %+v, %v; want none", all, err)
	}
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "control", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	dir, err := openCgroup(cgroupDir(root, name))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: foreign, Attach: ebpf.AttachCGroupInet4Connect})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k := openKernel(t, Config{Cgroups: []string{below}})
	if err := k.Attach(); err != nil {
		t.Fatal(err)
	}
	all, err := ProgramsAt(root, []string{below})
	if err != nil {
		t.Fatal(err)
	}
	var own, others []string
	for _, p := range all {
		if p.Own {
			own = append(own, p.Name)
		} else {
			others = append(others, p.Name+" at "+p.Hook)
		}
	}
	slices.Sort(own)
	if want := []string{"connect4", "connect6", "getpeername4", "getpeername6", "sendmsg4", "sendmsg6"}; !slices.Equal(own, want) {
		t.Errorf("own: got %v, want %v", own, want)
	}
	if want := []string{"control at CGroupInet4Connect"}; !slices.Equal(others, want) {
		t.Errorf("others: got %v, want %v", others, want)
	}
	if _, err := ProgramsAt(root, []string{name + "-missing"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing cgroup: got %v", err)
	}
}

func TestChecksOfTheMachine(t *testing.T) {
	if err := CheckBTF(); err != nil {
		t.Error(err)
	}
	if err := CheckPinDir(t.TempDir()); !errors.Is(err, ErrNoBPFFS) {
		t.Errorf("pins elsewhere: got %v, want ErrNoBPFFS", err)
	}
	root, err := CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	if !IsCgroupRoot(root) || IsCgroupRoot(t.TempDir()) {
		t.Errorf("root: got %v for %s and %v for a folder of another kind", IsCgroupRoot(root), root, IsCgroupRoot(t.TempDir()))
	}
}
