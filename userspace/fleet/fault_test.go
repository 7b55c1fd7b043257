// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
)

// slow is a limit under which whatever is granted twice shows.
var slow = shared.Limit{Interval: 10 * time.Second, Burst: 1}

// TestLostAnswer loses the answer to a call that was granted: the call is made
// again and gets the same grant.
func TestLostAnswer(t *testing.T) {
	s := serve(t)
	r := newRelay(t, s.addr())
	store := open(t, r.url(), Config{}, "")
	first := must(t, store, shared.Call{Kind: shared.Book, Limit: slow, Units: 1})
	r.mu.Lock()
	r.lose = 1
	r.mu.Unlock()
	second := must(t, store, shared.Call{Kind: shared.Book, Limit: slow, Units: 1})
	if second.Granted != 1 || second.After > 10*time.Second || second.Grant == first.Grant {
		t.Fatalf("the call that was repeated got %+v", second)
	}
	third := must(t, store, shared.Call{Kind: shared.Book, Limit: shared.Limit{Interval: 10 * time.Second, Burst: 1}, Units: 1})
	if d := third.After - second.After; d < 9*time.Second || d > 10*time.Second {
		t.Errorf("the next slot is %v after it, want 10s: the lost one counts once", d)
	}
	// Twice in a row is an error, and in time.
	r.mu.Lock()
	r.lose = 2
	r.mu.Unlock()
	_, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "a", Host: "b", Limit: slow})
	failed(t, err, ErrDown)
}

// TestKillAndEmptyRestart is kill -9 of a server that keeps nothing.
func TestKillAndEmptyRestart(t *testing.T) {
	t.Parallel()
	s := serve(t)
	var outcomes []Outcome
	var mu sync.Mutex
	store := open(t, s.url(), Config{Timeout: 5 * time.Second, Learn: time.Second, Observe: func(o Outcome) {
		mu.Lock()
		outcomes = append(outcomes, o)
		mu.Unlock()
	}}, "")
	call := shared.Call{Kind: shared.Book, Limit: slow, Units: 1}
	must(t, store, call)
	booked := must(t, store, call)
	at := time.Now().Add(booked.After)
	must(t, store, shared.Call{Kind: shared.Close, Limit: slow, Until: time.Minute, Epoch: 0, Factor: 0.5})
	s.kill()
	start := time.Now()
	_, err := store.Do(background, shared.Call{Kind: shared.Book, Lane: "store/store.example.com/direct", Host: "host", Limit: slow, Units: 1})
	failed(t, err, ErrDown)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a server that is gone costs %v", took)
	}
	s.start()
	a := must(t, store, call)
	if !a.Young || a.Granted != 0 || a.Retry <= 0 || a.Retry > time.Second {
		t.Errorf("from a server that forgot: %+v, want nothing for the time to learn", a)
	}
	if a.Epoch != 1 || a.OpenAfter < 50*time.Second || a.Interval != 20*time.Second {
		t.Errorf("the cooldown was not told to the server that forgot: %+v", a)
	}
	eventually(t, "the time to learn is over", func() bool {
		a = must(t, store, call)
		return a.Granted == 1 || a.Retry > 5*time.Second
	})
	if a.Granted == 1 && time.Now().Add(a.After).Before(at.Add(slow.Interval-time.Second)) {
		t.Errorf("a slot %v from now, though one was booked for %v from now", a.After, time.Until(at))
	}
	mu.Lock()
	defer mu.Unlock()
	forgotten := slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Err == nil && o.Trips > 1 })
	if !forgotten {
		t.Error("no call took more than one round trip: the text of the script was not sent")
	}
	if !slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Err != nil }) {
		t.Error("the observer heard of no failure")
	}
}

// TestFlush loses all keys under a fleet that goes on booking: the slots of all
// hosts together conform to the limit before, across and after.
func TestFlush(t *testing.T) {
	t.Parallel()
	s := serve(t)
	limit := shared.Limit{Interval: 40 * time.Millisecond, Burst: 4}
	var mu sync.Mutex
	var slots []time.Duration
	young := false
	var hosts sync.WaitGroup
	stop := make(chan struct{})
	for i := range 6 {
		store := open(t, s.url(), Config{Learn: time.Second}, "")
		hosts.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				c := shared.Call{Kind: shared.Book, Lane: "l", Host: fmt.Sprint(i), Limit: limit, Units: 1}
				id := store.id()
				r, err := raw(store, &c, id)
				if err != nil {
					t.Error(err)
					return
				}
				a := r.answer(&c, id)
				mu.Lock()
				slots = append(slots, units(a, span(r.clock))...)
				young = young || a.Granted == 0 && a.Young
				mu.Unlock()
				time.Sleep(min(max(a.After, a.Retry), 300*time.Millisecond))
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	s.do("FLUSHALL")
	time.Sleep(1800 * time.Millisecond)
	close(stop)
	hosts.Wait()
	slices.Sort(slots)
	if err := conform(slots, limit); err != nil {
		t.Error(err)
	}
	if !young {
		t.Error("nobody was told that the store began anew")
	}
	if len(slots) < 25 {
		t.Errorf("only %d slots", len(slots))
	}
}

// TestStopped is SIGSTOP for 2 s: calls end in time, and what the server comes
// to run later takes nothing from the budget.
func TestStopped(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const timeout = 300 * time.Millisecond
	store := open(t, s.url(), Config{Timeout: timeout}, "")
	call := shared.Call{Kind: shared.Book, Limit: slow, Units: 1, Lane: "l", Host: "h"}
	eventually(t, "a first slot", func() bool { a, err := store.Do(background, call); return err == nil && a.Granted == 1 })
	before, err := store.Do(background, call)
	for err != nil { // on a machine that is late itself
		before, err = store.Do(background, call)
	}
	seen := store.memory.lanes["l"]
	start := time.Now()
	s.signal(syscall.SIGSTOP)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			at := time.Now()
			_, err := store.Do(background, call)
			failed(t, err, ErrTimeout)
			if took := time.Since(at); took > timeout+time.Second {
				t.Errorf("the call took %v", took)
			}
		})
	}
	wait.Wait()
	time.Sleep(2*time.Second - time.Since(start))
	s.signal(syscall.SIGCONT)
	eventually(t, "the server is back", func() bool {
		_, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow})
		return err == nil
	})
	var after shared.Answer
	eventually(t, "a slot", func() bool { after, err = store.Do(background, call); return err == nil && after.Granted == 1 })
	now := store.memory.lanes["l"]
	slotBefore, slotAfter := span(seen.clock)+before.After, span(now.clock)+after.After
	if d := slotAfter - slotBefore; d < slow.Interval || d > slow.Interval+time.Second {
		t.Errorf("the slot after the stop is %v behind the one before, want 10s: nothing in between", d)
	}
}

// TestFailoverToLaggingReplica promotes a replica that has not heard of the last
// changes, and leads the hosts to it.
func TestFailoverToLaggingReplica(t *testing.T) {
	t.Parallel()
	master := serve(t)
	replica := serve(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.port))
	r := newRelay(t, master.addr())
	a, b := open(t, r.url(), Config{Learn: time.Second}, ""), open(t, r.url(), Config{Learn: time.Second}, "")
	call := shared.Call{Kind: shared.Book, Limit: slow, Units: 1}
	must(t, a, call)
	key := keysOf("store/store.example.com/direct")[0]
	eventually(t, "the replica follows", func() bool { return replica.admin().Exists(background, key).Val() == 1 })
	replica.do("REPLICAOF", "NO", "ONE") // from here on it hears nothing
	last := must(t, b, call)
	must(t, b, shared.Call{Kind: shared.Close, Limit: slow, Until: 30 * time.Second, Factor: 0.5})
	r.lead(replica.addr())
	master.kill()

	// The host that knows less comes first, the one that knows more within the
	// time to learn.
	first := must(t, a, call)
	told := must(t, b, call)
	if told.Granted != 0 || !told.Young || told.Retry > time.Second || told.Epoch != 1 || told.OpenAfter < 25*time.Second {
		t.Errorf("the replica was not told what it had missed: %+v", told)
	}
	if first.Granted == 1 && first.After+time.Second < last.After {
		t.Logf("the host that knew less got a slot after %v, the last booked is after %v: what a failover may cost", first.After, last.After)
	}
	again := must(t, a, shared.Call{Kind: shared.Watch, Limit: slow})
	if again.Epoch != 1 || again.OpenAfter < 25*time.Second || again.Interval != 20*time.Second {
		t.Errorf("the other host does not hear of the cooldown: %+v", again)
	}
	eventually(t, "it grants again", func() bool {
		x := must(t, b, call)
		if x.Granted == 1 && x.After < 25*time.Second {
			t.Errorf("a slot after %v, within the cooldown", x.After)
		}
		return x.Granted == 1 || x.Retry > 2*time.Second
	})
}

// TestFullServer refuses writes.
func TestFullServer(t *testing.T) {
	s := serve(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	store := open(t, s.url(), Config{}, "")
	_, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow})
	failed(t, err, ErrDown)
}

// TestNobodyThere is a port on which nobody listens.
func TestNobodyThere(t *testing.T) {
	store := open(t, fmt.Sprintf("redis://127.0.0.1:%d", freePort(t)), Config{Timeout: 100 * time.Millisecond}, "")
	start := time.Now()
	for range 5 {
		if _, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow}); err == nil {
			t.Fatal("no error")
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("5 calls took %v", took)
	}
}

// TestSilent is a server that takes connections and never says a word, with more
// calls than the client library has connections, and a login before each.
func TestSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	const timeout = 100 * time.Millisecond
	store := open(t, "redis://user:password@"+l.Addr().String()+"/3", Config{Timeout: timeout}, "")
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			start := time.Now()
			_, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow})
			failed(t, err, ErrTimeout)
			if took := time.Since(start); took > timeout+time.Second {
				t.Errorf("the call took %v", took)
			}
		})
	}
	wait.Wait()
}
