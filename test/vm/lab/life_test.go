// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// heartbeat is the age at which the daemon's heartbeat is too old.
const heartbeat = time.Second

// plenty is a budget that holds nobody.
func plenty(w *web) string {
	return fmt.Sprintf("  - {name: all, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 100000/s, burst: 1000}", w.port)
}

// must fails the test unless the answer is good, and direct as wanted.
func must(t testing.TB, what string, a answer, direct bool) {
	t.Helper()
	if a.err != nil || a.status != 200 || a.direct != direct {
		t.Errorf("%s: got %v; want status 200, direct %t", what, a, direct)
	}
}

// clients ask one after the other, at so many places at once, until they are
// told to stop.
type clients struct {
	stop chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	got  []answer
}

func startClients(w *web, n int) *clients {
	c := &clients{stop: make(chan struct{})}
	for range n {
		c.all.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				a := get(w.addr())
				c.mu.Lock()
				c.got = append(c.got, a)
				c.mu.Unlock()
			}
		})
	}
	return c
}

// after waits until n answers to requests that began after a time are as ok
// wants them.
func (c *clients) after(t testing.TB, m Mono, n int, what string, ok func(answer) bool) {
	t.Helper()
	waitFor(t, what, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		found := 0
		for _, a := range c.got {
			if a.begin > m && ok(a) {
				found++
			}
		}
		return found >= n
	})
}

// end stops the clients and returns what they got.
func (c *clients) end() []answer {
	close(c.stop)
	c.all.Wait()
	return c.got
}

func redirected(a answer) bool { return a.err == nil && a.status == 200 && !a.direct }
func native(a answer) bool     { return a.err == nil && a.status == 200 && a.direct }

func TestRootCgroup(t *testing.T) {
	needVM(t)
	w := newWeb(t)
	must(t, "before the daemon", get(w.addr()), true)
	d := newDaemon(t, plenty(w))
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	if !loader.IsCgroupRoot(root) || len(programs(t)) == 0 {
		t.Fatalf("got programs %v at %s, want those of the daemon at the root", programs(t), root)
	}
	var status struct {
		Kernel struct {
			Attached bool
			Canary   struct{ OK bool }
		}
	}
	waitFor(t, "the canary", func() bool {
		askJSON(t, &status, "status")
		return status.Kernel.Canary.OK
	})
	if !status.Kernel.Attached {
		t.Errorf("got status %+v, want it attached", status)
	}
	must(t, "a process of the root cgroup", get(w.addr()), false)

	// Also from a cgroup below, and one below that.
	dir := filepath.Join(root, "lab", "inner")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filepath.Dir(dir))
	defer os.Remove(dir)
	before := w.requests.Load()
	for _, dir := range []string{filepath.Dir(dir), dir} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestOneRequest$")
		cmd.Env = append(os.Environ(), requestName+"="+w.addr())
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a process of %s: %v\n%s", dir, err, out)
		}
	}
	if got := w.requests.Load() - before; got != 2 {
		t.Errorf("got %d requests of the cgroups below, want 2", got)
	}
	d.stop(t)
	must(t, "after the daemon", get(w.addr()), true)
}

// requestName is where TestOneRequest asks, as a process of another cgroup.
const requestName = "EGRESSD_LAB_REQUEST"

// TestOneRequest is a part of TestRootCgroup, which runs it in processes of
// other cgroups. By itself it has a server, and no daemon.
func TestOneRequest(t *testing.T) {
	if addr := os.Getenv(requestName); addr != "" {
		must(t, "in another cgroup", get(addr), false)
		return
	}
	must(t, "without a daemon", get(newWeb(t).addr()), true)
}

func TestKilled(t *testing.T) {
	needVM(t)
	w := newWeb(t)
	d := newDaemon(t, plenty(w))
	c := startClients(w, 4)
	c.after(t, 0, 10, "redirected connections", redirected)
	killed := Now()
	d.kill(t)
	dead := Now()
	c.after(t, dead, 10, "native connections", native)
	for _, a := range c.end() {
		switch {
		case a.err != nil && a.end < killed:
			t.Errorf("before the end of the daemon: got %v, want no error", a)
		case a.begin > dead && !native(a):
			t.Errorf("after the end of the daemon: got %v, want a native connection", a)
		case a.end.Sub(max(a.begin, killed)) > heartbeat && a.end > killed:
			// Those that the daemon had in its hands are reset with it.
			t.Errorf("after kill -9: got %v, want no client to hang", a)
		}
	}
}

func TestStopped(t *testing.T) {
	needVM(t)
	w := newWeb(t)
	d := newDaemon(t, plenty(w))
	c := startClients(w, 1)
	c.after(t, 0, 3, "redirected connections", redirected)
	d.signal(t, unix.SIGSTOP)
	stopped := Now()
	time.Sleep(heartbeat + 100*time.Millisecond)
	// From here on nobody is led to who does not answer.
	longest := time.Duration(0)
	for range 20 {
		a := get(w.addr())
		must(t, "while the daemon stands still", a, true)
		longest = max(longest, a.end.Sub(a.begin))
	}
	if longest > time.Second {
		t.Errorf("got a connection of %v while the daemon stood still, want less than 1 s", longest)
	}
	t.Logf("longest of 20 connections %v after SIGSTOP: %v", heartbeat, longest)
	d.signal(t, unix.SIGCONT)
	continued := Now()
	c.after(t, continued, 3, "redirected connections after SIGCONT", redirected)
	reset := 0
	for _, a := range c.end() {
		// Those that were led to the daemon in the second before its heartbeat
		// was too old are reset soon after it was.
		if led := a.begin.Sub(stopped); a.err != nil && led > -heartbeat && led <= heartbeat && errors.Is(a.err, unix.ECONNRESET) {
			reset++
			if hung := a.end.Sub(max(a.begin, stopped)); hung > 2*heartbeat {
				t.Errorf("%v after SIGSTOP: got a reset after %v, want it within a second or so", led, hung)
			}
			continue
		}
		if a.err != nil || a.begin.Sub(stopped) > heartbeat && a.end.Sub(max(a.begin, continued)) > time.Second && a.end > continued {
			t.Errorf("%v after SIGSTOP: got %v, want an answer", a.begin.Sub(stopped), a)
		}
	}
	t.Logf("%d clients of the last second were reset", reset)
}

// cooled is a daemon whose only lane its origin has closed for a long time.
func cooled(t testing.TB, w *web) *daemon {
	t.Helper()
	d := newDaemon(t, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 100/s, burst: 10, queue: {max_wait: 1s}}", w.port))
	w.limited.Store(600)
	if a := get(w.addr()); a.err != nil || a.status != 429 {
		t.Fatalf("got %v, want the origin's own 429", a)
	}
	if l := theLane(t); l.Open || l.ClosedFor < 500 {
		t.Fatalf("got lane %+v, want it closed for 600 s", l)
	}
	return d
}

// mustRefuse fails the test unless the daemon answers in place of the origin.
func mustRefuse(t testing.TB, w *web) {
	t.Helper()
	before := w.requests.Load()
	if a := get(w.addr()); a.err != nil || a.status != 429 || w.requests.Load() != before {
		t.Errorf("got %v and %d more requests at the origin, want egressd's own 429 and none", a, w.requests.Load()-before)
	}
}

func TestCooldownOutlivesTheDaemon(t *testing.T) {
	needVM(t)
	w := newWeb(t)
	d := cooled(t, w)
	for _, end := range []struct {
		name string
		end  func(testing.TB)
	}{{"kill -9", d.kill}, {"SIGTERM", d.stop}} {
		before, at := theLane(t), Now()
		end.end(t)
		must(t, "without the daemon", get(w.addr()), true)
		d.start(t)
		got, want := theLane(t), before.ClosedFor-Now().Sub(at).Seconds()
		if got.Open || math.Abs(got.ClosedFor-want) > 2 {
			t.Errorf("after %s: got lane %+v, want it closed for %.1f s", end.name, got, want)
		}
		mustRefuse(t, w)
	}
}

// A ledger of another layout is another version's: it is neither read nor
// removed, and is there again for that version.
func TestOtherLayouts(t *testing.T) {
	needVM(t)
	w := newWeb(t)
	d := cooled(t, w)
	d.stop(t)
	names := pinned(t)
	if len(names) != 1 {
		t.Fatalf("got pins %v, want one folder", names)
	}
	own := names[0]
	const older, newer = "v0", "v1000"
	rename(t, own, older)
	d.start(t)
	must(t, "beside the ledger of an older version", get(w.addr()), false)
	if l := theLane(t); !l.Open {
		t.Errorf("beside the ledger of an older version: got lane %+v, want a new one", l)
	}
	d.stop(t)
	if got, want := pinned(t), sorted(older, own); !slices.Equal(got, want) {
		t.Errorf("after the upgrade: got pins %v, want %v", got, want)
	}

	// And back: the other's ledger is now that of a newer version.
	rename(t, own, newer)
	rename(t, older, own)
	d.start(t)
	if l := theLane(t); l.Open || l.ClosedFor < 100 {
		t.Errorf("after the downgrade: got lane %+v, want the cooldown of before the upgrade", l)
	}
	mustRefuse(t, w)
	d.stop(t)
	if got, want := pinned(t), sorted(own, newer); !slices.Equal(got, want) {
		t.Errorf("after the downgrade: got pins %v, want %v", got, want)
	}
	for _, dir := range []string{own, newer} {
		if got, want := entries(t, filepath.Join(pins, dir)), []string{"lanes", "ledger"}; !slices.Equal(got, want) {
			t.Errorf("%s: got pins %v, want %v", dir, got, want)
		}
	}

	// A ledger that is none of this layout, in spite of the folder's name, is
	// an error with a remedy, and stays as it is.
	for _, step := range [][2]string{{"ledger", "other"}, {"lanes", "ledger"}, {"other", "lanes"}} {
		rename(t, filepath.Join(own, step[0]), filepath.Join(own, step[1]))
	}
	out, err := exec.Command(egressd, "run", "--config", d.config).CombinedOutput()
	text := strings.TrimSpace(string(out))
	last := text[strings.LastIndexByte(text, '\n')+1:]
	if err == nil || !strings.HasPrefix(last, "egressd: ") || !strings.Contains(last, "remove "+filepath.Join(pins, own)) {
		t.Errorf("with maps of another kind: got %v and\n%s\nwant a line with the remedy", err, text)
	}
	if got := programs(t); len(got) > 0 {
		t.Errorf("after a start that failed: got programs %v, want none", got)
	}
	must(t, "after a start that failed", get(w.addr()), true)
}

// pinned lists the folders of layouts.
func pinned(t testing.TB) []string {
	t.Helper()
	return entries(t, pins)
}

func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(filepath.Join(pins, from), filepath.Join(pins, to)); err != nil {
		t.Fatal(err)
	}
}

func sorted(names ...string) []string {
	slices.Sort(names)
	return names
}
