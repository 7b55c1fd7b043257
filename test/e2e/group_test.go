// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// group is a cgroup of one test: the scope of its daemon, or the one in which
// it runs egressd exec.
type group struct {
	dir  string // in the file system
	path string // from the root of the hierarchy
	file *os.File
}

var groups atomic.Int64

// newGroup makes a cgroup that goes with the test, after everything in it was
// killed. A test that calls it is skipped without root.
func newGroup(t testing.TB) *group {
	t.Helper()
	needRoot(t)
	name := fmt.Sprintf("g%d", groups.Add(1))
	g := &group{dir: filepath.Join(here.cgroup, name), path: here.path + "/" + name}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.remove(t) })
	fd, err := unix.Open(g.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	g.file = os.NewFile(uintptr(fd), g.dir)
	t.Cleanup(func() { g.file.Close() })
	return g
}

// needRoot skips a test that cannot load programs or make cgroups.
func needRoot(t testing.TB) {
	t.Helper()
	if here == nil {
		t.Skip("needs root: it loads programs and makes cgroups")
	}
}

func (g *group) remove(t testing.TB) {
	t.Helper()
	g.kill(t)
	mustBeClean(t, g)
	if err := os.Remove(g.dir); err != nil {
		t.Errorf("remove cgroup: %v", err)
	}
}

// kill ends all processes in the cgroup and waits until they are gone.
func (g *group) kill(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Error(err)
	}
	waitFor(t, 10*time.Second, "the end of all processes in "+g.path, func() bool {
		return g.populated(t) == "0"
	})
}

// populated is "1" while a process is in the cgroup or below it.
func (g *group) populated(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "populated ")
	return rest[:min(1, len(rest))]
}

// children lists the cgroups in the cgroup.
func (g *group) children(t testing.TB) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeDir != 0 {
			names = append(names, e.Name())
		}
	}
	return names
}

// waitFor calls ok until it says true, and fails the test if it does not
// within patience. The patience is for machines that are slow, not a claim.
func waitFor(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}
