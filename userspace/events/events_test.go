// SPDX-License-Identifier: Apache-2.0

package events

import (
	"slices"
	"sync"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// nth is an event that is told from others by its instant.
func nth(n int) policy.Event { return policy.Event{At: ledger.Time(n), Kind: policy.EventCooldown} }

func times(evs []policy.Event) (out []int) {
	for _, ev := range evs {
		out = append(out, int(ev.At))
	}
	return out
}

func drain(s *Subscription) (out []policy.Event) {
	for ev := range s.C {
		out = append(out, ev)
	}
	return out
}

func TestRecent(t *testing.T) {
	l := New(4)
	for _, tt := range []struct {
		emit int
		n    int
		want []int
	}{
		{0, 10, nil},
		{3, 10, []int{1, 2, 3}},
		{0, 2, []int{2, 3}},
		{0, 0, nil},
		{0, -1, nil},
		{1, 10, []int{1, 2, 3, 4}},
		{1, 10, []int{2, 3, 4, 5}},
		{6, 10, []int{8, 9, 10, 11}},
		{0, 1, []int{11}},
	} {
		for range tt.emit {
			l.Emit(nth(int(last(l)) + 1))
		}
		if got := times(l.Recent(tt.n)); !slices.Equal(got, tt.want) {
			t.Errorf("Recent(%d) = %v, want %v", tt.n, got, tt.want)
		}
	}
	if got := New(0).kept; got != DefaultKept {
		t.Errorf("a log that nobody sized keeps %d, want %d", got, DefaultKept)
	}
}

func last(l *Log) ledger.Time {
	if r := l.Recent(1); len(r) == 1 {
		return r[0].At
	}
	return 0
}

func TestSubscribe(t *testing.T) {
	l := New(8)
	l.Emit(nth(1))
	l.Emit(nth(2))
	past, s := l.Subscribe(1, Options{})
	l.Emit(nth(3))
	l.Emit(policy.Event{At: 4, Kind: policy.EventDispatch})
	l.Emit(nth(5))
	s.Close()
	s.Close()
	l.Emit(nth(6))
	if got, want := times(past), []int{2}; !slices.Equal(got, want) {
		t.Errorf("past = %v, want %v", got, want)
	}
	if got, want := times(drain(s)), []int{3, 5}; !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v: what came between, without dispatches", got, want)
	}
}

func TestDispatches(t *testing.T) {
	l := New(8)
	dispatch := policy.Event{At: 1, Kind: policy.EventDispatch}
	_, deaf := l.Subscribe(0, Options{})
	if l.Dispatches() {
		t.Error("dispatch events are wanted, and nobody asked for them")
	}
	_, s := l.Subscribe(0, Options{Dispatches: true})
	_, s2 := l.Subscribe(0, Options{Dispatches: true})
	l.Emit(dispatch)
	s.Close()
	if !l.Dispatches() {
		t.Error("dispatch events are not wanted, while one listens")
	}
	s2.Close()
	if l.Dispatches() {
		t.Error("dispatch events are wanted, though those who asked are gone")
	}
	deaf.Close()
	if got := drain(s); len(got) != 1 || got[0] != dispatch {
		t.Errorf("heard %v, want the dispatch", got)
	}
	if got := drain(deaf); len(got) != 0 {
		t.Errorf("heard %v without having asked for it", got)
	}
	if got := l.Recent(8); len(got) != 0 {
		t.Errorf("the log remembers %v, want no dispatches", got)
	}
}

func TestDropped(t *testing.T) {
	l := New(8)
	_, s := l.Subscribe(0, Options{Buffer: 2})
	for i := range 5 {
		l.Emit(nth(i + 1))
	}
	if got := s.Dropped(); got != 3 {
		t.Errorf("dropped = %d, want 3", got)
	}
	l.Close()
	if got, want := times(drain(s)), []int{1, 2}; !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
}

func TestClose(t *testing.T) {
	l := New(8)
	l.Emit(nth(1))
	_, s := l.Subscribe(0, Options{Dispatches: true})
	l.Close()
	l.Close()
	if _, open := <-s.C; open {
		t.Error("the subscription is open after the log was closed")
	}
	l.Emit(nth(2))
	past, late := l.Subscribe(8, Options{Dispatches: true})
	if got, want := times(past), []int{1}; !slices.Equal(got, want) {
		t.Errorf("past = %v, want %v", got, want)
	}
	if _, open := <-late.C; open {
		t.Error("a subscription to a closed log is open")
	}
	if l.Dispatches() {
		t.Error("a closed log wants dispatch events")
	}
	late.Close()
}

// A listener misses nothing and hears nothing twice, whenever it comes.
func TestSubscribeConcurrent(t *testing.T) {
	const n = 2000
	l := New(n)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			l.Emit(nth(i + 1))
		}
		l.Close()
	})
	for range 4 {
		wg.Go(func() {
			past, s := l.Subscribe(n, Options{Buffer: n})
			got := times(append(past, drain(s)...))
			for i, at := range got {
				if at != i+1 {
					t.Errorf("event %d in place of %d", at, i+1)
					return
				}
			}
			if len(got) != n {
				t.Errorf("%d events, want %d", len(got), n)
			}
		})
	}
	wg.Wait()
}

func BenchmarkDispatches(b *testing.B) {
	l := New(0)
	for b.Loop() {
		if l.Dispatches() {
			b.Fatal("nobody asked")
		}
	}
}
