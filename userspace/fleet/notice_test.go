// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
)

// listen subscribes and returns what comes.
func listen(t *testing.T, s *Store) <-chan Notice {
	t.Helper()
	ctx, cancel := context.WithCancel(background)
	notices, done := make(chan Notice, 100), make(chan error, 1)
	go func() { done <- s.Subscribe(ctx, func(n Notice) { notices <- n }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Subscribe returned %v", err)
		}
	})
	return notices
}

// next is the next notice.
func next(t *testing.T, notices <-chan Notice) Notice {
	t.Helper()
	select {
	case n := <-notices:
		return n
	case <-time.After(30 * time.Second):
		t.Fatal("no notice in 30 s")
		return Notice{}
	}
}

func TestCooldownsReachEveryHost(t *testing.T) {
	s := serve(t)
	a, b := open(t, s.url(), Config{}, ""), open(t, s.url(), Config{}, "")
	notices := listen(t, b)
	if n := next(t, notices); n != (Notice{}) {
		t.Fatalf("first notice %+v, want that of the subscription", n)
	}
	limit := shared.Limit{Interval: time.Second, Burst: 1}
	const lane = "store/store.example.com/direct;path=/a%20{b}"
	close1 := shared.Call{Kind: shared.Close, Lane: lane, Host: "host a", Limit: limit, Until: 3 * time.Second, Factor: 0.5}
	must(t, a, close1)
	n := next(t, notices)
	if n.Lane != lane || n.Host != "host a" || n.Epoch != 1 || n.OpenAfter != 3*time.Second || n.Interval != 2*time.Second {
		t.Errorf("notice %+v", n)
	}
	// What changes nothing is no news: the next is that of another lane.
	close1.Until = time.Second
	must(t, a, close1)
	close1.Lane, close1.Factor = "x", 1
	must(t, a, close1)
	if n := next(t, notices); n.Lane != "x" || n.Epoch != 1 || n.Interval != time.Second {
		t.Errorf("notice %+v", n)
	}
	close1.Lane, close1.Until, close1.Factor, close1.Epoch = "y", 0, 0.5, 0
	must(t, a, close1)
	must(t, a, shared.Call{Kind: shared.Reward, Lane: "y", Limit: limit, Epoch: 1, Step: 10})
	if n := next(t, notices); n.Lane != "y" || n.Interval != 2*time.Second {
		t.Errorf("notice %+v", n)
	}
	if n := next(t, notices); n.Lane != "y" || n.Interval != time.Second {
		t.Errorf("a lane at its limit again: %+v", n)
	}
	// Nonsense on the channel is passed over.
	s.do("PUBLISH", channel, "nonsense")
	s.kill()
	s.start()
	if n := next(t, notices); n != (Notice{}) {
		t.Errorf("after the server was gone: %+v, want that of a new subscription", n)
	}
	close1.Lane = "z"
	must(t, a, close1)
	if n := next(t, notices); n.Lane != "z" {
		t.Errorf("notice %+v", n)
	}
}

// TestMayNotPublish: a user without channels costs the notices, nothing else.
func TestMayNotPublish(t *testing.T) {
	s := serve(t)
	s.do("ACL", "SETUSER", "mute", "on", ">pw", "~egressd:1:*", "+@all", "resetchannels")
	store := open(t, "redis://mute:pw@"+s.addr(), Config{}, "")
	a := must(t, store, shared.Call{Kind: shared.Close, Limit: slow, Until: time.Minute, Factor: 0.5})
	if a.Epoch != 1 || a.OpenAfter != time.Minute {
		t.Errorf("got %+v", a)
	}
	if a := must(t, store, shared.Call{Kind: shared.Watch, Limit: slow}); a.Epoch != 1 || a.OpenAfter < 30*time.Second {
		t.Errorf("got %+v", a)
	}
}

func FuzzParseNotice(f *testing.F) {
	for _, s := range []string{"1 2 3000000 1000000000 host store/a/b", "1 0 0 0 %20 %7B", "2 0 0 0 a b", "1 -1 0 0 a b", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseNotice(text)
		if err != nil {
			if n != (Notice{}) {
				t.Errorf("%q: %+v with an error", text, n)
			}
			return
		}
		if n.Lane == "" || n.Host == "" || n.OpenAfter < 0 || n.Interval < 0 {
			t.Errorf("%q: %+v", text, n)
		}
		words := strings.Split(text, " ")
		if words[4] != escape(n.Host) || words[5] != escape(n.Lane) {
			t.Errorf("%q: %+v is written otherwise", text, n)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(16, int64(1), int64(5))
	f.Add(15, int64(1), int64(5))
	f.Add(16, int64(-1), int64(1<<62))
	f.Fuzz(func(t *testing.T, n int, a, b int64) {
		if n < 0 || n > 64 {
			return
		}
		words := make([]int64, n)
		for i := range words {
			words[i] = a
			if i%2 == 1 {
				words[i] = b
			}
		}
		var r reply
		if err := r.read(words); err != nil {
			return
		}
		c := shared.Call{Kind: shared.Lease, Term: time.Second}
		x := r.answer(&c, "id")
		if x.After < 0 || x.OpenAfter < 0 || x.Interval < 0 || x.Retry < 0 || x.Hosts < 0 || (x.Granted > 0) != (x.Grant != "") {
			t.Errorf("%v: %s", words, fmt.Sprintf("%+v", x))
		}
	})
}
