// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"sync"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
)

var second = shared.Limit{Interval: time.Second, Burst: 3}

func TestCloseTheLaterEndHolds(t *testing.T) {
	c := newClocked(t, serve(t), "close/a/-")
	closeFor := func(d time.Duration, epoch uint64) shared.Answer {
		return c.must(shared.Call{Kind: shared.Close, Limit: second, Until: d, Epoch: epoch, Factor: 0.5})
	}
	c.must(shared.Call{Kind: shared.Watch, Limit: second})
	c.pass(time.Hour)
	a := closeFor(5*time.Second, 0)
	if a.Epoch != 1 || a.OpenAfter != 5*time.Second || a.Interval != 2*time.Second {
		t.Fatalf("after a refusal: %+v", a)
	}
	if a = closeFor(2*time.Second, 0); a.Epoch != 1 || a.OpenAfter != 5*time.Second || a.Interval != 2*time.Second {
		t.Errorf("a second refusal of the epoch: %+v", a)
	}
	if a = closeFor(9*time.Second, 0); a.Epoch != 1 || a.OpenAfter != 9*time.Second {
		t.Errorf("a longer one: %+v", a)
	}
	// The bucket was full and is empty at the reopening: one unit, then the
	// slowed pace.
	for _, after := range []time.Duration{9, 11} {
		if a := c.must(shared.Call{Kind: shared.Book, Limit: second, Units: 1}); a.After != after*time.Second {
			t.Errorf("slot after %v, want %vs", a.After, int64(after))
		}
	}
	// Down to a unit in 2 s, or half the limit where that is slower.
	if a = closeFor(0, 1); a.Epoch != 2 || a.Interval != 2*time.Second {
		t.Errorf("at the lowest pace: %+v", a)
	}
}

func TestOneHalvingForEachEpoch(t *testing.T) {
	s := serve(t)
	var hosts sync.WaitGroup
	for i := range 8 {
		store := open(t, s.url(), Config{}, "")
		hosts.Go(func() {
			for range 5 {
				c := shared.Call{Kind: shared.Close, Lane: "a/b/c", Host: fmt.Sprint(i), Limit: shared.Limit{Interval: time.Millisecond, Burst: 1},
					Until: time.Second, Factor: 0.5}
				if _, err := store.Do(background, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	hosts.Wait()
	store := open(t, s.url(), Config{}, "")
	a := must(t, store, shared.Call{Kind: shared.Watch, Lane: "a/b/c", Limit: shared.Limit{Interval: time.Millisecond, Burst: 1}})
	if a.Epoch != 1 || a.Interval != 2*time.Millisecond || a.Hosts != 9 {
		t.Errorf("after 40 refusals of one epoch by 8 hosts: %+v", a)
	}
}

func TestReassertion(t *testing.T) {
	c := newClocked(t, serve(t), "assert/a/-")
	closeAs := func(epoch uint64, factor float64) shared.Answer {
		return c.must(shared.Call{Kind: shared.Close, Limit: second, Epoch: epoch, Factor: factor, Until: time.Second})
	}
	// Eight hosts tell a store that forgot: together they slow nothing.
	for range 8 {
		if a := closeAs(4, 0.25); a.Epoch != 5 || a.Interval != 4*time.Second || a.OpenAfter != time.Second {
			t.Fatalf("told of what began epoch 5, a quarter of the rate: %+v", a)
		}
	}
	if a := closeAs(5, 0.5); a.Epoch != 6 {
		t.Errorf("a refusal later: %+v", a)
	}
	if a := closeAs(8, 1); a.Epoch != 9 || a.Interval != 4*time.Second {
		t.Errorf("told of epoch 9: %+v", a)
	}
}

func TestReward(t *testing.T) {
	c := newClocked(t, serve(t), "reward/a/-")
	reward := func(epoch uint64, step float64) time.Duration {
		return c.must(shared.Call{Kind: shared.Reward, Limit: second, Epoch: epoch, Step: step}).Interval
	}
	c.must(shared.Call{Kind: shared.Close, Limit: second, Until: time.Second, Factor: 0.5})
	if got := reward(1, 1.1); got != 2*time.Second {
		t.Errorf("rewarded while closed: %v", got)
	}
	c.pass(time.Second)
	if got := reward(0, 1.1); got != 2*time.Second {
		t.Errorf("rewarded for an epoch before: %v", got)
	}
	if got := reward(1, 1.25); got != 1600*time.Millisecond {
		t.Errorf("got %v, want 1.6s", got)
	}
	if got := reward(1, 100); got != time.Second {
		t.Errorf("got %v, want 1s: the limit", got)
	}
}

func TestHosts(t *testing.T) {
	c := newClocked(t, serve(t), "hosts/a/-")
	watch := func(host string) int { return c.must(shared.Call{Kind: shared.Watch, Limit: second, Host: host}).Hosts }
	for i := range 8 {
		if got := watch(fmt.Sprint(i)); got != i+1 {
			t.Errorf("got %d hosts, want %d", got, i+1)
		}
	}
	c.pass(shared.Alive - time.Second)
	if got := watch("7"); got != 8 {
		t.Errorf("got %d hosts, want 8", got)
	}
	c.pass(2 * time.Second)
	if got := watch("9"); got != 2 {
		t.Errorf("the others fell silent: got %d hosts, want 2", got)
	}
}

// TestKeysExpire: nothing stays for ever, and nothing goes before its time.
func TestKeysExpire(t *testing.T) {
	s := serve(t)
	store := open(t, s.url(), Config{}, "")
	limit := shared.Limit{Interval: 24 * time.Hour, Burst: 2}
	must(t, store, shared.Call{Kind: shared.Book, Limit: limit, Units: 1})
	a := must(t, store, shared.Call{Kind: shared.Close, Limit: limit, Until: 48 * time.Hour, Factor: 0.5})
	if a.OpenAfter != 48*time.Hour {
		t.Fatalf("closed for %v", a.OpenAfter)
	}
	paced := shared.Limit{Interval: time.Second, Burst: 1}
	must(t, store, shared.Call{Kind: shared.Lease, Lane: "x", Limit: paced, Units: 3, Term: time.Second})
	b := must(t, store, shared.Call{Kind: shared.Lease, Lane: "x", Limit: paced, Units: 3, Term: time.Second})
	must(t, store, shared.Call{Kind: shared.Book, Lane: "x", Limit: paced})
	if g := must(t, store, shared.Call{Kind: shared.Give, Lane: "x", Limit: paced, Units: 2, Grant: b.Grant}); g.Granted != 2 {
		t.Fatalf("got %d back", g.Granted)
	}
	admin := s.admin()
	keys, err := admin.Keys(background, "*").Result()
	if err != nil || len(keys) < 6 {
		t.Fatalf("keys %q, error %v", keys, err)
	}
	for _, key := range keys {
		ttl, err := admin.PTTL(background, key).Result()
		if err != nil || ttl <= 0 {
			t.Errorf("%s: expires after %v, error %v", key, ttl, err)
		}
	}
	if ttl := admin.PTTL(background, keysOf("store/store.example.com/direct")[0]).Val(); ttl < 48*time.Hour {
		t.Errorf("a lane that is closed for 48h expires after %v", ttl)
	}
}

func TestCallsThatMakeNoSense(t *testing.T) {
	store := open(t, "redis://127.0.0.1:1", Config{}, "")
	for _, c := range []shared.Call{
		{Lane: "a", Host: "b"},
		{Lane: "a", Host: "b", Kind: 99},
		{Lane: "a", Kind: shared.Watch},
		{Host: "b", Kind: shared.Watch},
		{Lane: "a", Host: "b", Kind: shared.Watch, Limit: shared.Limit{Interval: -1}},
		{Lane: "a", Host: "b", Kind: shared.Watch, Limit: shared.Limit{Interval: maxInterval + 1}},
		{Lane: "a", Host: "b", Kind: shared.Close, Factor: nan},
	} {
		if _, err := store.Do(background, c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

func TestKeysOfLanesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, lane := range []string{"a/b/c", "a/b/{c", "a/b/c}", "a/b/%7Bc", "}", "%7D", "{}", "é"} {
		keys := keysOf(lane)
		tag := keys[0][len(prefix):]
		for _, key := range keys {
			if key[:len(prefix)+len(tag)] != prefix+tag {
				t.Errorf("lane %q: key %q is in another slot", lane, key)
			}
		}
		if before, ok := seen[keys[0]]; ok {
			t.Errorf("lanes %q and %q have one key", lane, before)
		}
		seen[keys[0]] = lane
	}
}
