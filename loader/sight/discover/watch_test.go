// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/loader/sight"
)

// watched is a Watcher at work and what it told.
type watched struct {
	*Watcher
	t testing.TB

	mu     sync.Mutex
	events []Event
	sizes  map[fileID]int64 // of what Path led to when it was Found
}

// lookout says how a test watches: the pauses of scans, and whether the kernel
// tells of mappings.
type lookout struct {
	pauses pauses
	blind  bool
	linger time.Duration
}

// never is longer than any test.
const never = time.Hour

func (g group) watch(l lookout, cgroups ...string) *watched {
	g.t.Helper()
	if len(cgroups) == 0 {
		cgroups = []string{g.path}
	}
	w, err := NewWatcher(Config{Root: g.root, Cgroups: cgroups, Linger: l.linger})
	if err != nil {
		g.t.Fatal(err)
	}
	w.pausesOf = func(bool) pauses { return l.pauses }
	if l.blind {
		w.openRings = func() (*rings, error) { return nil, errors.New("refused") }
	}
	ctx, cancel := context.WithCancel(context.Background())
	wd := &watched{Watcher: w, t: g.t, sizes: map[fileID]int64{}}
	done := make(chan error)
	go func() { done <- w.Run(ctx, wd.handle) }()
	g.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			g.t.Errorf("run: %v", err)
		}
		if err := w.Close(); err != nil {
			g.t.Errorf("close: %v", err)
		}
	})
	wd.until("the first scan", func() bool { return w.Counts().Scans > 0 && (l.blind || w.Counts().Blind == "") })
	return wd
}

func (w *watched) handle(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	for _, t := range e.Targets {
		if info, err := os.Stat(t.Path); err == nil {
			w.sizes[fileID{e.Dev, e.Inode}] = info.Size()
		}
	}
}

// told lists the events of a file.
func (w *watched) told(id fileID) (kinds []EventKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if (fileID{e.Dev, e.Inode}) == id {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

func (w *watched) target(id fileID, lib sight.Library) (found sight.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		for _, t := range e.Targets {
			if (fileID{e.Dev, e.Inode}) == id && t.Library == lib {
				found = t
			}
		}
	}
	return found
}

// until waits for something to become true.
func (w *watched) until(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("waited in vain for %s: %+v, events %+v", what, w.Counts(), w.events)
		}
	}
}

// wants waits until a file was told of as given.
func (w *watched) wants(id fileID, kinds ...EventKind) {
	w.t.Helper()
	w.until(fmt.Sprintf("%v of %s", kinds, id), func() bool { return slices.Equal(w.told(id), kinds) })
}

// Each way in which a process comes to a library is told by the kernel: no scan
// comes after the first.
func TestTold(t *testing.T) {
	g := mustGroup(t)
	ssl, crypto, gnutls := mustFind(t, "libssl.so.3"), mustFind(t, "libcrypto.so.3"), mustFind(t, "libgnutls.so.30")
	dir := t.TempDir()
	w := g.watch(lookout{pauses: pauses{never, never}, linger: never})

	// libcrypto alone speaks no TLS.
	c := g.python()
	c.do("import ctypes; ctypes.CDLL(%q)", crypto)
	c.do("ctypes.CDLL(%q)", gnutls)
	w.wants(mustID(t, gnutls), Found)
	if got := w.told(mustID(t, crypto)); len(got) > 0 {
		t.Errorf("libcrypto without libssl: got %v", got)
	}
	c.do("ctypes.CDLL(%q)", ssl)
	w.wants(mustID(t, ssl), Found)
	w.wants(mustID(t, crypto), Found)
	for path, lib := range map[string]sight.Library{ssl: sight.OpenSSL, crypto: sight.LibCrypto, gnutls: sight.GnuTLS} {
		got, want := w.target(mustID(t, path), lib), onlyTarget(t, mustInspect(t, path), lib)
		if got.Name != path || got.BuildID != want.BuildID || fmt.Sprint(got.Probes) != fmt.Sprint(want.Probes) {
			t.Errorf("%s: got %+v, want %+v", path, got, want)
		}
	}

	// A copy under a name that tells nothing, and one that is deleted at once.
	for name, remove := range map[string]bool{"innocent.txt": false, "gone.so": true, "libssl.so.3 X": false} {
		path := filepath.Join(dir, name)
		mustCopy(t, ssl, path)
		id := mustID(t, path)
		c := g.python()
		c.do("import ctypes, os; ctypes.CDLL(%q)", path)
		if remove {
			os.Remove(path)
		}
		w.wants(id, Found)
		info, err := os.Stat(ssl)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		if w.sizes[id] != info.Size() {
			t.Errorf("%s: its path led to %d bytes, want %d", name, w.sizes[id], info.Size())
		}
		w.mu.Unlock()
	}

	// Programs.
	program := mustBuildGo(t, goBuild{ldflags: "-s -w"})
	g.start(program)
	w.wants(mustID(t, program), Found)
	node := mustFind(t, "node")
	g.start(node, "-e", "setTimeout(() => 0, 60000)")
	w.wants(mustID(t, node), Found)

	// A second process of each is nothing new.
	g.start(program)
	g.python().do("import ctypes; ctypes.CDLL(%q)", ssl)
	last := filepath.Join(dir, "last.so")
	mustCopy(t, gnutls, last)
	g.python().do("import ctypes; ctypes.CDLL(%q)", last)
	w.wants(mustID(t, last), Found)
	for _, path := range []string{ssl, crypto, gnutls, program, node} {
		w.wants(mustID(t, path), Found)
	}
	if n := w.Counts().Scans; n != 1 {
		t.Errorf("%d scans, want the first alone", n)
	}
}

// A library that a program is linked with is there before the first call: wget
// ends by itself, so its file is told of while it runs or right after.
func TestToldAtStart(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{never, never}, linger: never})
	wget, gnutls := mustFind(t, "wget"), mustFind(t, "libgnutls.so.30")
	fifo := filepath.Join(t.TempDir(), "in")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(wget, "-q", "-i", fifo) // waits until somebody writes
	w.wants(mustID(t, gnutls), Found)
}

func TestFoundAtStart(t *testing.T) {
	g := mustGroup(t)
	ssl := mustFind(t, "libssl.so.3")
	g.python().do("import ctypes; ctypes.CDLL(%q)", ssl)
	for _, l := range []lookout{{pauses: pauses{never, never}}, {pauses: pauses{never, never}, blind: true}} {
		w := g.watch(l)
		w.wants(mustID(t, ssl), Found)
		w.wants(mustID(t, mustFind(t, "libcrypto.so.3")), Found)
	}
}

// Where the kernel does not tell, looking again finds the same.
func TestBlind(t *testing.T) {
	g := mustGroup(t)
	ssl, dir := mustFind(t, "libssl.so.3"), t.TempDir()
	w := g.watch(lookout{pauses: pauses{10 * time.Millisecond, 20 * time.Millisecond}, blind: true, linger: time.Millisecond})
	if got := w.Counts().Blind; got != "refused" {
		t.Errorf("blind since %q", got)
	}
	path := filepath.Join(dir, "copy.so")
	mustCopy(t, ssl, path)
	c := g.python()
	w.until("the process", func() bool { return w.Counts().Processes == 1 })
	c.do("import ctypes; lib = ctypes.CDLL(%q)", path)
	w.wants(mustID(t, path), Found)
	c.end()
	w.wants(mustID(t, path), Found, Gone)
}

func TestOutsideOfTheCgroups(t *testing.T) {
	g, other := mustGroup(t), mustGroup(t)
	w := g.watch(lookout{pauses: pauses{never, never}})
	dir := t.TempDir()
	mine, theirs := filepath.Join(dir, "mine"), filepath.Join(dir, "theirs")
	mustCopy(t, mustFind(t, "libssl.so.3"), mine)
	mustCopy(t, mine, theirs)
	outside, inside := other.python(), g.python()
	outside.do("import ctypes; ctypes.CDLL(%q)", theirs)
	inside.do("import ctypes; ctypes.CDLL(%q)", mine)
	w.wants(mustID(t, mine), Found)
	if got := w.told(mustID(t, theirs)); len(got) > 0 {
		t.Errorf("a file of processes outside: got %v", got)
	}

	// Another scope takes effect at once, in both directions.
	w.SetScope([]string{other.path}, nil)
	w.wants(mustID(t, theirs), Found)
	w.until("the only process", func() bool { return w.Counts().Processes == 1 })
	w.SetScope([]string{"/"}, []string{other.path})
	w.until("more processes", func() bool { return w.Counts().Processes > 1 })
	if own := os.Getpid(); w.currentScope().has(own) {
		// We are in scope and Go, and not to be probed.
		id, err := ownProgram()
		if err != nil {
			t.Fatal(err)
		}
		if got := w.told(id); len(got) > 0 {
			t.Errorf("the own program: got %v", got)
		}
	} else {
		t.Errorf("process %d is not in the root's scope", own)
	}
}

// A process that is moved into the scope maps nothing anew: a scan finds it.
func TestMovedIn(t *testing.T) {
	g, other := mustGroup(t), mustGroup(t)
	w := g.watch(lookout{pauses: pauses{10 * time.Millisecond, never}})
	path := filepath.Join(t.TempDir(), "lib")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	c := other.python()
	c.do("import ctypes; ctypes.CDLL(%q)", path)
	mustWrite(t, filepath.Join(g.dir(), "cgroup.procs"), fmt.Sprint(c.pid()))
	w.wants(mustID(t, path), Found)
}

// A file is Gone after the last process that maps it, also one that only
// inherited it, and is Found again after that.
func TestGone(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{10 * time.Millisecond, never}, linger: time.Millisecond})
	path := filepath.Join(t.TempDir(), "lib")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	id := mustID(t, path)
	c := g.python()
	fifo := filepath.Join(t.TempDir(), "wait")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c.do("import ctypes, os; ctypes.CDLL(%q)", path)
	w.wants(id, Found)
	// The child waits until somebody opens the pipe, and then finds no more to do.
	c.do("os.fork() == 0 and open(%q).read()", fifo)
	w.until("two processes", func() bool { return w.Counts().Processes == 2 })
	c.end()
	w.until("one process", func() bool { return w.Counts().Processes == 1 })
	w.wants(id, Found)
	mustWrite(t, fifo, "")
	w.wants(id, Found, Gone)
	// The others that it mapped may be told after this one.
	w.until("no file to be known", func() bool { return w.Counts().Files == 0 })

	d := g.python()
	d.do("import ctypes, os; ctypes.CDLL(%q)", path)
	w.wants(id, Found, Gone, Found)
	d.end()
	w.wants(id, Found, Gone, Found, Gone)
}

// A program that another one becomes is told by the kernel, and what the first
// one had mapped goes.
func TestExec(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{10 * time.Millisecond, never}, linger: time.Millisecond})
	path := filepath.Join(t.TempDir(), "lib")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	// The files of the other program are known: no mapping is worth a look.
	g.start("/bin/sleep", "60")
	w.until("the other program", func() bool { return w.Counts().Processes == 1 })
	c := g.python()
	c.do("import ctypes, os; ctypes.CDLL(%q)", path)
	w.wants(mustID(t, path), Found)
	fmt.Fprintf(c.in, "os.execv('/bin/sleep', ['sleep', '60'])\n")
	w.wants(mustID(t, path), Found, Gone)
	if n := w.Counts().Processes; n != 2 {
		t.Errorf("%d processes, want the two that go on", n)
	}
}

// A child has what its parent mapped, though nobody maps anything.
func TestFork(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{never, never}})
	c := g.python()
	c.do("import ctypes, os; ctypes.CDLL(%q)", mustFind(t, "libssl.so.3"))
	w.wants(mustID(t, mustFind(t, "libssl.so.3")), Found)
	c.do("os.fork() == 0 and os.read(0, 1)")
	w.until("two processes", func() bool { return w.Counts().Processes == 2 })
	// A process that ended is none, though its parent does not know it yet.
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.until("one process", func() bool { return w.Counts().Processes == 1 })
	c.in.Close() // the child finds its input at an end
	w.until("no process", func() bool { return w.Counts().Processes == 0 })
}

// The own program is never told of, though other processes run it.
func TestOwnProgramIsNotTold(t *testing.T) {
	g := mustGroup(t)
	program := mustBuildGo(t, goBuild{})
	g.start(program)
	for _, own := range []bool{false, true} {
		w, err := NewWatcher(Config{Root: g.root, Cgroups: []string{g.path}})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if own {
			w.own = mustID(t, program)
		}
		told := 0
		w.known.tell = func(Event) { told++ }
		w.scan(time.Now())
		if want := map[bool]int{false: 1, true: 0}[own]; told != want {
			t.Errorf("own %v: told %d times, want %d", own, told, want)
		}
	}
}

// Between the end of one process and the start of the next a file stays known.
func TestLinger(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{10 * time.Millisecond, never}, linger: never})
	path := filepath.Join(t.TempDir(), "lib")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	for range 3 {
		c := g.python()
		c.do("import ctypes; ctypes.CDLL(%q)", path)
		w.wants(mustID(t, path), Found)
		c.end()
		w.until("no process", func() bool { return w.Counts().Processes == 0 })
	}
	w.wants(mustID(t, path), Found)
}

func TestRecheck(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{never, never}})
	path := filepath.Join(t.TempDir(), "lib")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	id := mustID(t, path)
	c := g.python()
	c.do("import ctypes; ctypes.CDLL(%q)", path)
	w.wants(id, Found)
	w.Recheck(id.dev, id.inode)
	w.wants(id, Found, Gone, Found)
	w.Recheck(id.dev, id.inode)
	w.wants(id, Found, Gone, Found, Gone, Found)
	// Of a file that is not known somebody may map it all the same.
	scans := w.Counts().Scans
	w.Recheck(1, 1)
	w.until("a scan", func() bool { return w.Counts().Scans > scans })
	w.wants(id, Found, Gone, Found, Gone, Found)
}

// A file that was judged harmless is looked at again when a record tells of
// another one under its number, and after a while: it may have been written
// anew, or its inode may be another file's.
func TestHarmlessNoMore(t *testing.T) {
	g := mustGroup(t)
	path := filepath.Join(t.TempDir(), "lib.so")
	mustCopy(t, mustFind(t, "libc.so.6"), path)
	id := mustID(t, path)
	c := g.python()
	c.do("import mmap, os; f = os.open(%q, os.O_RDONLY); m = mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)", path)
	m := mustMap(t, c.pid(), func(m mapping) bool { return m.file == id })
	w, err := NewWatcher(Config{Root: g.root, Cgroups: []string{g.path}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now := time.Now()
	first := w.file(c.pid(), m, false, now)
	if first == nil || len(first.targets) > 0 || !w.known.harmless(id) {
		t.Fatalf("a library without TLS: got %+v", first)
	}
	if w.file(c.pid(), m, true, now) != first {
		t.Error("the same file became another one")
	}
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	if mustID(t, path) != id {
		t.Fatal("the file was replaced, not written")
	}
	if w.file(c.pid(), m, false, now.Add(trusted-1)) != first {
		t.Error("it is looked at again at once")
	}
	second := w.file(c.pid(), m, false, now.Add(trusted))
	if second == nil || len(second.targets) != 1 || w.known.harmless(id) {
		t.Errorf("after a while: got %+v, want a target", second)
	}

	mustCopy(t, mustFind(t, "libc.so.6"), path)
	if third := w.file(c.pid(), m, true, now.Add(trusted)); third == nil || len(third.targets) > 0 {
		t.Errorf("in doubt: got %+v, want no target", third)
	}
	// Only the first record of a file gives cause to doubt.
	told := place{m.start, recordFile{1, 2, 3, 4}}
	other := place{m.end, recordFile{1, 2, 3, 5}}
	for i, want := range []bool{true, false, false} {
		if got := w.unsure(m, []place{{}, other, told}); got != want {
			t.Errorf("record %d: got doubt %v, want %v", i, got, want)
		}
	}
}

// Records that are lost are made up for by a scan.
func TestLost(t *testing.T) {
	g := mustGroup(t)
	w, err := NewWatcher(Config{Root: g.root, Cgroups: []string{g.path}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now := time.Now()
	w.scan(now)
	if w.Counts().Scans != 1 || !w.nextAll.After(now.Add(afterLoss)) {
		t.Fatalf("%+v, next scan at %s", w.Counts(), w.nextAll)
	}
	w.note(record{kind: recordLost, lost: 3})
	w.note(record{kind: recordLost, lost: 4})
	w.scan(now.Add(afterLoss - 1))
	if got := w.Counts(); got.Lost != 7 || got.Scans != 1 {
		t.Errorf("%+v, want 7 lost and no scan yet", got)
	}
	w.scan(now.Add(afterLoss))
	if got := w.Counts(); got.Scans != 2 {
		t.Errorf("%+v, want a scan", got)
	}
}

// Many processes that start and end at the same time: nothing is lost, nobody
// is left over, and no file stays open.
func TestStorm(t *testing.T) {
	g := mustGroup(t)
	w := g.watch(lookout{pauses: pauses{20 * time.Millisecond, never}, linger: time.Millisecond})
	dir, python := t.TempDir(), mustPython(t)
	files := openFiles(t)
	var ids []fileID
	var paths []string
	for i := range 8 {
		path := filepath.Join(dir, fmt.Sprint(i))
		mustCopy(t, mustFind(t, "libssl.so.3"), path)
		ids, paths = append(ids, mustID(t, path)), append(paths, path)
	}
	var children []*child
	for i := range 32 {
		children = append(children, g.start(python, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('done', flush=True); sys.stdin.read()", paths[i%len(paths)]))
	}
	for _, id := range ids {
		w.until("all to be found", func() bool { return len(w.told(id)) > 0 })
	}
	for _, c := range children {
		c.end()
	}
	w.until("the end of all", func() bool { c := w.Counts(); return c.Processes == 0 && c.Files == 0 })
	for _, id := range ids {
		if got := w.told(id); len(got)%2 != 0 || got[len(got)-1] != Gone {
			t.Errorf("%s: got %v, want it gone in the end", id, got)
		}
	}
	for _, c := range children {
		c.in.Close()
	}
	w.until("files to be closed", func() bool { return openFiles(t) <= files })
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// More files than can be probed are left out, and found when there is room.
func TestRegistryIsBounded(t *testing.T) {
	r := newRegistry()
	var events []Event
	r.tell = func(e Event) { events = append(events, e) }
	now := time.Now()
	target := []sight.Target{{Library: sight.OpenSSL, Probes: []sight.Probe{{Symbol: "SSL_read"}}}}
	for i := range maxFiles {
		if !r.add(&file{id: fileID{1, uint64(i)}, targets: target}, now) {
			t.Fatalf("file %d is left out", i)
		}
	}
	if r.add(&file{id: fileID{1, maxFiles}, targets: target}, now) {
		t.Error("one more than the most is added")
	}
	handle := mustOpen(t, "/proc/self/exe")
	if r.add(&file{id: fileID{1, maxFiles}, targets: target, handle: handle}, now) || handle.Close() == nil {
		t.Error("a file that is left out stays open")
	}
	r.assign(7, map[fileID]*file{{1, 0}: r.files[fileID{1, 0}], {1, 5}: nil})
	if len(events) != 1 || events[0].Kind != Found || r.told != 1 {
		t.Fatalf("%+v, %d", events, r.told)
	}
	for i := range 3 * (maxOthers + maxFiles) {
		r.add(&file{id: fileID{2, uint64(i)}}, now)
	}
	if n := len(r.files); n > maxOthers+maxFiles {
		t.Errorf("%d files are known", n)
	}
	if !r.harmless(fileID{2, 3*(maxOthers+maxFiles) - 1}) || r.harmless(fileID{1, 0}) || r.harmless(fileID{3, 0}) {
		t.Error("what is harmless is not what has no targets")
	}
	r.expire(now.Add(time.Minute), time.Minute)
	if n := slices.Collect(maps.Values(r.processes)); len(n) != 1 || r.told != 1 {
		t.Errorf("%d processes, %d files told", len(n), r.told)
	}
	r.assign(7, nil)
	r.expire(now.Add(time.Hour), time.Minute)
	if r.told != 0 || len(events) != 2 || events[1].Kind != Gone {
		t.Errorf("%d files told, events %+v", r.told, events)
	}
}

func TestLogsNothingUnsafe(t *testing.T) {
	g := mustGroup(t)
	var out bytes.Buffer
	w, err := NewWatcher(Config{Root: g.root, Cgroups: []string{g.path}, Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	path := filepath.Join(t.TempDir(), "x\x1b[31m.so")
	mustCopy(t, mustFind(t, "libssl.so.3"), path)
	g.python().do("import ctypes; ctypes.CDLL(%q)", path)
	var names []string
	w.known.tell = func(e Event) { names = append(names, e.Name) }
	w.scan(time.Now())
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, `x\x1b[31m.so`) }) {
		t.Errorf("names %q", names)
	}
	if strings.Contains(out.String()+strings.Join(names, ""), "\x1b") {
		t.Errorf("control characters in %q, %q", out.String(), names)
	}
}

// BenchmarkScan is the cost of looking at a hundred processes that map an SSL
// library and some twenty others each.
func BenchmarkScan(b *testing.B) {
	g := mustGroup(b)
	python := mustPython(b)
	for range 100 {
		c := g.start(python, "-c", "import ssl, sys; print('done', flush=True); sys.stdin.read()")
		if _, err := c.out.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	for _, fresh := range []bool{true, false} {
		b.Run(fmt.Sprintf("fresh=%v", fresh), func(b *testing.B) {
			w, err := NewWatcher(Config{Root: g.root, Cgroups: []string{g.path}})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			b.ReportAllocs()
			for b.Loop() {
				if fresh {
					w.known.close()
					w.known = newRegistry()
				}
				w.nextAll = time.Time{}
				w.scan(time.Now())
			}
			if n := len(w.known.processes); n != 100 {
				b.Fatalf("%d processes", n)
			}
			runtime.KeepAlive(w)
		})
	}
}
