// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// site is what all tests of one run share.
type site struct {
	dir    string // temporary, with short paths: sockets lie in it
	bin    string // the egressd under test
	self   string // this test binary, which plays clients too
	cgroup string // folder of the cgroup around all cgroups of the tests
	path   string // the same from the root of the hierarchy
	pins   string // a BPF file system of our own
	marker string // in the environment of every process that tests start
}

// here is set by TestMain, and stays nil without root.
var here *site

// markerName is the variable by which processes of this run are found.
const markerName = "EGRESSD_E2E_RUN"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleName); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	flag.Parse()
	// Tests mostly wait; their number, not their work, bounds them.
	if !isSet("test.parallel") {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(runSite(m))
}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func runSite(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // each test says why it is skipped
	}
	s, err := openSite()
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up:", err)
		if s != nil {
			s.close()
		}
		return 1
	}
	here = s
	status := m.Run()
	for _, left := range s.close() {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		status = max(status, 1)
	}
	return status
}

// openSite makes the site. The caller closes what is returned, also with an
// error.
func openSite() (*site, error) {
	s := &site{marker: fmt.Sprintf("%d-%d", os.Getpid(), unix.Getuid())}
	var err error
	if s.self, err = os.Executable(); err != nil {
		return s, err
	}
	// Not in $TMPDIR: the paths of sockets are short of room.
	if s.dir, err = os.MkdirTemp("/tmp", "e2e-"); err != nil {
		return s, err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { // other users run in it
		return s, err
	}
	s.bin = filepath.Join(s.dir, "egressd")
	args := []string{"build", "-o", s.bin}
	env := append(os.Environ(), "CGO_ENABLED=0")
	if os.Getenv("EGRESSD_RACE") == "1" {
		args, env = append(args, "-race"), os.Environ()
	}
	build := exec.Command("go", append(args, "../../cmd/egressd")...)
	build.Env = env
	if out, err := build.CombinedOutput(); err != nil {
		return s, fmt.Errorf("build egressd: %w\n%s", err, out)
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		return s, err
	}
	s.path = fmt.Sprintf("/e2e-%d", os.Getpid())
	s.cgroup = filepath.Join(root, s.path)
	if err := os.Mkdir(s.cgroup, 0o755); err != nil {
		s.cgroup = ""
		return s, err
	}
	// A file system of our own rather than /sys/fs/bpf: it is there on every
	// machine, and goes with all that is pinned in it.
	pins := filepath.Join(s.dir, "bpf")
	if err := os.Mkdir(pins, 0o700); err != nil {
		return s, err
	}
	if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
		return s, fmt.Errorf("mount bpffs: %w", err)
	}
	s.pins = pins
	return s, nil
}

// close takes the site away and tells what tests left behind.
func (s *site) close() (left []string) {
	left = s.leftovers()
	if s.pins != "" {
		if err := unix.Unmount(s.pins, unix.MNT_DETACH); err != nil {
			left = append(left, fmt.Sprintf("bpffs at %s: %v", s.pins, err))
		}
	}
	if s.cgroup != "" {
		if err := os.Remove(s.cgroup); err != nil {
			left = append(left, fmt.Sprintf("cgroup %s: %v", s.path, err))
		}
	}
	if s.dir != "" {
		if err := os.RemoveAll(s.dir); err != nil {
			left = append(left, err.Error())
		}
	}
	return left
}

// mustRun runs a command to its end and returns its standard output.
func mustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.Bytes())
	}
	return stdout.String()
}
