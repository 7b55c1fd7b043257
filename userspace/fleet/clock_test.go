// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	shared "github.com/egressd/egressd/policy/fleet"
)

var nan = math.NaN()

// classic is the token bucket that is found in tutorials: the caller tells the
// time.
var classic = redis.NewScript(`
local capacity, rate, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(state[1]) or capacity, tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)
local ok = 0
if tokens >= 1 then tokens, ok = tokens - 1, 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
return ok`)

// TestSkewedHosts lets two hosts, whose clocks are skew apart, ask in turn every
// 50 ms for 20 s of the server's time, under a limit of one a second: once
// by the script in which callers tell the time, once by ours.
func TestSkewedHosts(t *testing.T) {
	s := serve(t)
	const while = 20 * time.Second
	limit := shared.Limit{Interval: time.Second, Burst: 1}
	for _, tc := range []struct {
		skew           time.Duration
		classicAtLeast int
	}{{0, 0}, {100 * time.Millisecond, 26}, {time.Second, 150}} {
		c := newClocked(t, s, "skew/"+tc.skew.String()+"/-")
		start := c.now
		byCallers, host := 0, 0
		var slots []time.Duration
		for ; c.now < start+while; c.pass(50 * time.Millisecond) {
			host = 1 - host
			now := c.now + time.Duration(host)*tc.skew
			ok, err := classic.Run(background, c.admin, []string{"classic:" + tc.skew.String()}, 1, 1, now.Seconds()).Bool()
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				byCallers++
			}
			// A host polls: it wants what is there now, and nothing booked.
			a := c.must(shared.Call{Kind: shared.Book, Limit: limit, Units: 1, Host: []string{"a", "b"}[host]})
			if a.Granted == 1 && a.After == 0 {
				slots = append(slots, c.now)
			} else if a.Granted == 1 {
				c.must(shared.Call{Kind: shared.Give, Limit: limit, Units: 1, Grant: a.Grant})
			}
		}
		t.Logf("skew %v: %d sent in %v by the callers' clocks, %d by the server's", tc.skew, byCallers, while, len(slots))
		if byCallers < tc.classicAtLeast {
			t.Errorf("skew %v: the classic script let %d pass: this harness shows nothing", tc.skew, byCallers)
		}
		if err := conform(slots, limit); err != nil || len(slots) < 19 || len(slots) > 20 {
			t.Errorf("skew %v: %d slots, %v", tc.skew, len(slots), err)
		}
	}
}

// TestServerClockJumps sets the server's clock, as an administrator or a failover
// does.
func TestServerClockJumps(t *testing.T) {
	s := serve(t)
	limit := shared.Limit{Interval: time.Second, Burst: 2}
	book := func(c *clocked) shared.Answer {
		return c.must(shared.Call{Kind: shared.Book, Limit: limit, Units: 1})
	}
	for _, tc := range []struct {
		name string
		jump time.Duration
		want []time.Duration // of the slots after it, from then
	}{
		// A small step back holds the lane up for so long.
		{"back a little", -300 * time.Millisecond, []time.Duration{time.Second, 2 * time.Second}},
		// A large one does not.
		{"back an hour", -time.Hour, []time.Duration{time.Second, 2 * time.Second}},
		// A step forward is time that passed, of which the bucket holds no more
		// than a burst.
		{"forward an hour", time.Hour, []time.Duration{0, 0, time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClocked(t, s, tc.name)
			book(c)
			c.pass(tc.jump)
			var got []time.Duration
			for range tc.want {
				got = append(got, book(c).After)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("slots after %v, want %v", got, tc.want)
			}
			// Later it all goes on as ever.
			c.pass(10 * time.Second)
			if a, b, d := book(c), book(c), book(c); a.After != 0 || b.After != 0 || d.After != time.Second {
				t.Errorf("ten seconds later slots after %v, %v, %v", a.After, b.After, d.After)
			}
		})
	}
}

// TestClockThatTrembles lets the clock jump back and forth all the time: what is
// granted by the true time stays within what steps forward may cost.
func TestClockThatTrembles(t *testing.T) {
	c := newClocked(t, serve(t), "tremble/-/-")
	limit := shared.Limit{Interval: 100 * time.Millisecond, Burst: 1}
	var sent []time.Duration
	start := c.now
	for i := range 600 {
		truth := start + time.Duration(i)*20*time.Millisecond
		c.set(truth - time.Duration(i%2)*15*time.Millisecond)
		a := c.must(shared.Call{Kind: shared.Book, Limit: limit, Units: 1})
		if a.After == 0 {
			sent = append(sent, truth)
		} else {
			c.must(shared.Call{Kind: shared.Give, Limit: limit, Units: 1, Grant: a.Grant})
		}
	}
	if n := len(sent); n < 99 || n > 121 {
		t.Errorf("got %d units in 12 s at 10/s", n)
	}
}
