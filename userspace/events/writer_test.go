// SPDX-License-Identifier: Apache-2.0

package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func encode(ev policy.Event) ([]byte, error) { return json.Marshal(ev) }

// run runs a writer into a sink until end is called, which waits for it.
func run(t testing.TB, l *Log, sink Sink) (w *Writer, end func()) {
	t.Helper()
	w = NewWriter(l, sink, slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	wg.Go(w.Run)
	end = func() { l.Close(); wg.Wait() }
	t.Cleanup(end)
	return w, end
}

// lines are the events in a file.
func lines(t testing.TB, name string) (out []policy.Event) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var ev policy.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%s: line %q: %v", name, line, err)
		}
		out = append(out, ev)
	}
	return out
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for range 2000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited too long for %s", what)
}

// TestFileIsRotated holds that each event is in one of the files, whoever
// rotates them and how.
func TestFileIsRotated(t *testing.T) {
	name := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(name, []byte("{\"Kind\":\"before\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sink, err := NewFile(name, encode)
	if err != nil {
		t.Fatal(err)
	}
	l := New(0)
	w, end := run(t, l, sink)
	l.Emit(nth(1))
	waitFor(t, "the first", func() bool { return len(lines(t, name)) == 2 })
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	l.Emit(nth(2)) // the file of that name is not there, and the one open is
	waitFor(t, "the second", func() bool { return len(lines(t, name+".1")) == 3 })
	w.Reopen()
	w.Reopen()
	waitFor(t, "a new file", func() bool { _, err := os.Stat(name); return err == nil })
	l.Emit(nth(3))
	waitFor(t, "the third", func() bool { return len(lines(t, name)) == 1 })
	if err := os.Truncate(name, 0); err != nil { // as by copytruncate
		t.Fatal(err)
	}
	l.Emit(nth(4))
	end()
	if got := lines(t, name); len(got) != 1 || got[0].At != 4 {
		t.Errorf("got %v after it was emptied, want the fourth", got)
	}
	if got := lines(t, name+".1"); got[0].Kind != "before" || got[1].At != 1 || got[2].At != 2 {
		t.Errorf("got %v, want what was there and the first two", got)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("got %v and %v, want mode 0640", st.Mode(), err)
	}
	if n := w.Lost(); n != 0 {
		t.Errorf("%d events lost", n)
	}
}

func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewFile(filepath.Join(dir, "none", "events.jsonl"), encode); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a folder that is not there: got %v", err)
	}
	name := filepath.Join(dir, "events.jsonl")
	sink, err := NewFile(name, encode)
	if err != nil {
		t.Fatal(err)
	}
	l := New(0)
	w, end := run(t, l, sink)
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir + "-moved") })
	w.Reopen()
	waitFor(t, "the attempt", func() bool { return len(w.reopen) == 0 })
	l.Emit(nth(1))
	end()
	if got := lines(t, filepath.Join(dir+"-moved", "events.jsonl")); len(got) != 1 {
		t.Errorf("got %v, want the file from before to be used on", got)
	}
}

// TestFullDisk writes to a device that is always full.
func TestFullDisk(t *testing.T) {
	sink, err := NewFile("/dev/full", encode)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := New(0)
	w := NewWriter(l, sink, slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 5 {
		l.Emit(nth(i))
	}
	l.Close()
	w.Run()
	if got := w.Lost(); got != 5 {
		t.Errorf("got %d lost, want 5", got)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no space left") {
		t.Errorf("the daemon's log says %q, want one complaint", text)
	}
}

// slow is a sink that can be stopped, and that breaks.
type slow struct {
	mu     sync.Mutex
	stop   chan struct{} // Write waits for it
	broken error
	got    []policy.Event
}

func (s *slow) Write(ev policy.Event) error {
	<-s.stop
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	s.got = append(s.got, ev)
	return nil
}
func (s *slow) Reopen() error { return nil }
func (s *slow) Close() error  { return nil }

// TestSlowSink holds that nobody waits for a sink, and that all events are
// either written or counted as lost, in the log, too.
func TestSlowSink(t *testing.T) {
	sink := &slow{stop: make(chan struct{})}
	l := New(16)
	w, end := run(t, l, sink)
	const all = 3 * maxUnwritten
	for i := range all {
		l.Emit(nth(i)) // would block for ever if it waited
	}
	if w.Lost() < all-maxUnwritten-2 {
		t.Errorf("got %d lost while the sink stood still, want at least %d", w.Lost(), all-maxUnwritten-2)
	}
	close(sink.stop)
	waitFor(t, "what could be kept", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return len(sink.got) > maxUnwritten
	})
	l.Emit(nth(all))
	end()
	var written, lost uint64
	for _, ev := range sink.got {
		if ev.Kind == EventLost {
			lost += ev.Count
			continue
		}
		written++
	}
	if written+lost != all+1 || lost != w.Lost() || lost == 0 {
		t.Errorf("got %d written and %d told as lost, %d counted, want %d in all", written, lost, w.Lost(), all+1)
	}
}

// TestBrokenSink holds that events are told as lost when the sink works again.
func TestBrokenSink(t *testing.T) {
	sink := &slow{stop: make(chan struct{}), broken: errors.New("out of order")}
	close(sink.stop)
	l := New(16)
	w, end := run(t, l, sink)
	for i := range 3 {
		l.Emit(nth(i))
	}
	waitFor(t, "three errors", func() bool { return w.Lost() == 3 })
	sink.mu.Lock()
	sink.broken = nil
	sink.mu.Unlock()
	l.Emit(nth(3))
	l.Emit(nth(4))
	end()
	if len(sink.got) != 3 || sink.got[0].Kind != EventLost || sink.got[0].Count != 3 || sink.got[1].At != 3 || w.Lost() != 3 {
		t.Errorf("got %v and %d lost, want the gap of 3 and two events", sink.got, w.Lost())
	}
}

// short takes only a part of what is written, once.
type short struct {
	bytes.Buffer
	once bool
}

func (s *short) Write(p []byte) (int, error) {
	if !s.once {
		s.once = true
		s.Buffer.Write(p[:5])
		return 5, errors.New("no space left")
	}
	return s.Buffer.Write(p)
}

// TestTornLine holds that a line of which only a part was written does not
// spoil the next one.
func TestTornLine(t *testing.T) {
	out := new(short)
	s := NewStream(out, encode)
	if err := s.Write(nth(1)); err == nil {
		t.Error("got no error")
	}
	for i := range 2 {
		if err := s.Write(nth(2 + i)); err != nil {
			t.Error(err)
		}
	}
	want, _ := encode(nth(2))
	if got := strings.Split(out.String(), "\n"); len(got) != 4 || got[1] != string(want) || got[3] != "" {
		t.Errorf("got %q, want the torn line, two whole ones and an end", got)
	}
}

func TestEncodingThatFails(t *testing.T) {
	s := NewStream(new(bytes.Buffer), func(policy.Event) ([]byte, error) { return nil, fmt.Errorf("odd") })
	if err := s.Write(nth(1)); err == nil {
		t.Error("got no error")
	}
}
