// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
)

// TestSlotsOfManyHosts lets eight hosts book at once, on the server's own clock.
func TestSlotsOfManyHosts(t *testing.T) {
	s := serve(t)
	for _, limit := range []shared.Limit{
		{Interval: 3333 * time.Microsecond, Burst: 1}, {Interval: time.Second / 3, Burst: 5}, {Interval: 777777, Burst: 20},
	} {
		t.Run(fmt.Sprintf("%v burst %d", limit.Interval, limit.Burst), func(t *testing.T) {
			const each = 30
			var mu sync.Mutex
			var slots []time.Duration
			var grants []string
			var hosts sync.WaitGroup
			lane := "store/" + limit.Interval.String() + "/direct"
			for i := range 8 {
				store := open(t, s.url(), Config{}, "")
				hosts.Go(func() {
					for n := range each {
						c := shared.Call{Kind: shared.Book, Lane: lane, Host: fmt.Sprint("host", i), Limit: limit, Units: 1}
						if n%3 == 2 {
							c.Kind, c.Units, c.Term = shared.Lease, 3, time.Second
						}
						id := store.id()
						r, err := raw(store, &c, id)
						if err != nil {
							t.Error(err)
							return
						}
						a := r.answer(&c, id)
						mu.Lock()
						slots = append(slots, units(a, span(r.clock))...)
						if a.Granted > 0 {
							grants = append(grants, a.Grant)
						}
						mu.Unlock()
					}
				})
			}
			hosts.Wait()
			slices.Sort(slots)
			if err := conform(slots, limit); err != nil {
				t.Error(err)
			}
			want := max(1, 8*each/12) // what Ahead leaves of the slowest
			if len(slots) < want {
				t.Errorf("got %d slots, want %d at least", len(slots), want)
			}
			// Nothing is wasted while hosts are hungry: the slots follow each other.
			whole := time.Duration(len(slots)-1) * limit.Interval // a new lane has no burst yet
			if used := slots[len(slots)-1] - slots[0]; used > whole+whole/50+2*time.Second/100 && limit.Interval > 2*time.Millisecond {
				t.Errorf("%d slots take %v, want %v", len(slots), used, whole)
			}
			slices.Sort(grants)
			if n := len(slices.Compact(grants)); n != len(grants) {
				t.Errorf("%d grants of %d have the name of another", len(grants)-n, len(grants))
			}
		})
	}
}

// TestGrantsGrow tells a fence from the grants before it.
func TestGrantsGrow(t *testing.T) {
	s := serve(t)
	store := open(t, s.url(), Config{}, "")
	last := ""
	for range 50 {
		a := must(t, store, shared.Call{Kind: shared.Book, Units: 1, Limit: shared.Limit{Interval: time.Millisecond, Burst: 3}})
		if a.Grant <= last {
			t.Fatalf("grant %q after %q", a.Grant, last)
		}
		last = a.Grant
	}
}

func TestLeaseTakesTheBucketAndThenTheTimeToCome(t *testing.T) {
	c := newClocked(t, serve(t), "l/a/b")
	limit := shared.Limit{Interval: 10 * time.Millisecond, Burst: 10}
	lease := func(n uint64) shared.Call {
		return shared.Call{Kind: shared.Lease, Limit: limit, Units: n, Term: time.Second}
	}
	expect := func(a shared.Answer, granted uint64, after, retry time.Duration) {
		t.Helper()
		if a.Granted != granted || a.After != after || a.Retry != retry {
			t.Fatalf("got %d units after %v, retry %v; want %d after %v, retry %v", a.Granted, a.After, a.Retry, granted, after, retry)
		}
	}
	expect(c.must(lease(2)), 1, 0, 0) // a new lane is empty but for one
	expect(c.must(lease(3)), 3, 10*time.Millisecond, 0)
	c.pass(time.Second)
	a := c.must(lease(4))
	expect(a, 4, 0, 0)
	if a.Term != time.Second {
		t.Errorf("got term %v, want 1s", a.Term)
	}
	expect(c.must(lease(13)), 13, time.Microsecond, 0)          // six of them are there: less than half
	expect(c.must(lease(12)), 12, 80*time.Millisecond, 0)       // those six may go beside the last of the thirteen
	expect(c.must(lease(1<<20)), 1982, 200*time.Millisecond, 0) // a batch has its bound
	a = c.must(lease(1))
	if a.Granted != 0 || a.Retry <= 0 {
		t.Errorf("beyond Ahead got %d units, retry %v", a.Granted, a.Retry)
	}
	c.pass(time.Hour)
	expect(c.must(lease(15)), 10, 0, 0) // and the bucket is never more than full
}

func TestGiveBack(t *testing.T) {
	limit := shared.Limit{Interval: time.Second, Burst: 1}
	s := serve(t)
	book := func(c *clocked, n uint64) shared.Answer {
		return c.must(shared.Call{Kind: shared.Lease, Limit: limit, Units: n, Term: time.Second})
	}
	give := func(c *clocked, a shared.Answer, n uint64) uint64 {
		return c.must(shared.Call{Kind: shared.Give, Limit: limit, Units: n, Grant: a.Grant}).Granted
	}
	t.Run("the last", func(t *testing.T) {
		c := newClocked(t, s, "give/last/-")
		book(c, 1)
		a := book(c, 4) // slots 1 to 4
		c.pass(500 * time.Millisecond)
		if got := give(c, a, 3); got != 3 {
			t.Fatalf("got %d back, want 3", got)
		}
		if a := book(c, 1); a.After != 1500*time.Millisecond {
			t.Errorf("next slot after %v, want 1.5s", a.After)
		}
		if got := give(c, a, 1); got != 0 {
			t.Errorf("a grant came back twice: %d", got)
		}
	})
	t.Run("between others", func(t *testing.T) {
		c := newClocked(t, s, "give/between/-")
		book(c, 1)
		a, b := book(c, 4), book(c, 1) // slots 1 to 4, slot 5
		c.pass(2500 * time.Millisecond)
		if got := give(c, a, 3); got != 2 { // slots 3 and 4: 2 is past
			t.Fatalf("got %d back, want 2", got)
		}
		if d := book(c, 1); d.After != 500*time.Millisecond {
			t.Errorf("the slot that came back is after %v, want 500ms", d.After)
		}
		if d := book(c, 1); d.After != 1500*time.Millisecond {
			t.Errorf("the other slot that came back is after %v, want 1.5s", d.After)
		} else if got := give(c, d, 1); got != 1 {
			t.Errorf("a slot that came back does not come back again: %d", got)
		}
		if d := book(c, 2); d.Granted != 1 || d.After != 1500*time.Millisecond {
			t.Errorf("got %d units after %v, want 1 after 1.5s", d.Granted, d.After)
		}
		if d := book(c, 1); d.After != 3500*time.Millisecond {
			t.Errorf("a fresh slot is after %v, want 3.5s: behind slot 5", d.After)
		}
		if got := give(c, b, 7); got != 1 {
			t.Errorf("got %d back of a grant of 1", got)
		}
	})
	t.Run("of a grant that nobody knows", func(t *testing.T) {
		c := newClocked(t, s, "give/unknown/-")
		a := book(c, 1)
		for _, grant := range []string{"", "-", "x", "0-" + strings.Repeat("y", 99)} {
			if got := give(c, shared.Answer{Grant: grant}, 1); got != 0 {
				t.Errorf("grant %q: got %d back", grant, got)
			}
		}
		if got := give(c, a, 1); got != 1 {
			t.Errorf("got %d back, want 1", got)
		}
	})
	t.Run("from before a cooldown", func(t *testing.T) {
		c := newClocked(t, s, "give/closed/-")
		book(c, 1)
		a := book(c, 3)
		c.must(shared.Call{Kind: shared.Close, Limit: limit, Until: time.Second, Factor: 0.5})
		if got := give(c, a, 3); got != 0 {
			t.Errorf("got %d back, want 0: the bucket was emptied since", got)
		}
	})
}

// TestStories plays random days of hosts that book, give back, close and change
// their limit, on a clock that jumps: the slots conform, none lies in a cooldown
// that was known when it was granted, and nothing is granted twice.
func TestStories(t *testing.T) {
	s := serve(t)
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		c := newClocked(t, s, fmt.Sprintf("story/%d/-", seed))
		limit := shared.Limit{Interval: time.Duration(1+rnd.IntN(300)) * 1001 * time.Microsecond, Burst: uint64(1 + rnd.IntN(8))}
		type held struct {
			a     shared.Answer
			slots []time.Duration
		}
		var live []held
		var sent []time.Duration
		var openAt time.Duration
		var epoch uint64
		for range 150 {
			switch k := rnd.IntN(20); {
			case k < 9:
				a := c.must(shared.Call{Kind: shared.Lease, Limit: limit, Units: uint64(1 + rnd.IntN(5)), Term: time.Second, Host: fmt.Sprint(k)})
				if a.Granted == 0 {
					break
				}
				if c.now+a.After < openAt {
					t.Fatalf("seed %d: a slot %v before the end of the cooldown", seed, openAt-c.now-a.After)
				}
				live = append(live, held{a, units(a, c.now)})
			case k < 13 && len(live) > 0:
				// The first so many were sent, if their slots came; the rest go back.
				i := rnd.IntN(len(live))
				h := live[i]
				live = slices.Delete(live, i, i+1)
				used := rnd.IntN(len(h.slots) + 1)
				for used > 0 && h.slots[used-1] > c.now {
					used--
				}
				sent = append(sent, h.slots[:used]...)
				if n := uint64(len(h.slots) - used); n > 0 {
					if got := c.must(shared.Call{Kind: shared.Give, Limit: limit, Units: n, Grant: h.a.Grant}).Granted; got > n {
						t.Fatalf("seed %d: %d units came back of %d", seed, got, n)
					}
				}
			case k == 13 && seed%3 == 0:
				until := time.Duration(rnd.IntN(3000)) * time.Millisecond
				a := c.must(shared.Call{Kind: shared.Close, Limit: limit, Until: until, Epoch: epoch, Factor: 1})
				epoch, openAt = a.Epoch, c.now+a.OpenAfter
			default:
				c.pass(time.Duration(rnd.IntN(400)) * time.Millisecond * time.Duration(1+9*(k/19)))
			}
		}
		for _, h := range live {
			sent = append(sent, h.slots...)
		}
		slices.Sort(sent)
		if err := conform(sent, limit); err != nil {
			t.Errorf("seed %d, %v burst %d: %v", seed, limit.Interval, limit.Burst, err)
		}
		if len(sent) < 30 {
			t.Errorf("seed %d: only %d sent: the story tells nothing", seed, len(sent))
		}
	}
}

func TestAnotherLimit(t *testing.T) {
	c := newClocked(t, serve(t), "limit/a/-")
	book := func(l shared.Limit) shared.Answer { return c.must(shared.Call{Kind: shared.Book, Limit: l, Units: 1}) }
	hour, second := shared.Limit{Interval: time.Hour, Burst: 1}, shared.Limit{Interval: time.Second, Burst: 1}
	book(hour)
	c.pass(30 * time.Minute)
	if a := book(second); a.After != 500*time.Millisecond {
		t.Errorf("half an interval before the next unit, it is after %v under the new limit, want 500ms", a.After)
	}
	// A larger burst comes with time, not at once.
	c.pass(2 * time.Second)
	book(second)
	wide := shared.Limit{Interval: time.Second, Burst: 5}
	if a := book(wide); a.After != time.Second {
		t.Errorf("with a larger burst the next slot is after %v, want 1s", a.After)
	}
	c.pass(time.Hour)
	if a := c.must(shared.Call{Kind: shared.Lease, Limit: wide, Units: 9, Term: time.Second}); a.Granted != 5 {
		t.Errorf("got %d at once, want 5", a.Granted)
	}
	if a := c.must(shared.Call{Kind: shared.Lease, Units: 9, Term: time.Second}); a.Granted != 9 || a.After != 0 {
		t.Errorf("without a limit got %d after %v, want 9 at once", a.Granted, a.After)
	}
}
