// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"hash/maphash"
	"sync"
	"testing"

	"github.com/egressd/egressd/policy/verdict"
)

func TestOutcomeOf(t *testing.T) {
	for _, tt := range []struct {
		kind   verdict.Kind
		status int
		want   Outcome
	}{
		{verdict.OK, 200, Useful},
		{verdict.OK, 206, Useful},
		{verdict.OK, 299, Useful},
		{verdict.OK, 304, Useful}, // the client has it already
		{verdict.OK, 300, Redirect},
		{verdict.OK, 302, Redirect},
		{verdict.OK, 399, Redirect},
		{verdict.OK, 403, Blocked},
		{verdict.OK, 429, Blocked}, // one that no budget judged
		{verdict.OK, 451, Blocked},
		{verdict.OK, 404, Failed},
		{verdict.OK, 407, Failed},
		{verdict.OK, 101, Unseen},
		{verdict.OK, 0, Failed},
		{verdict.OK, 600, Failed},
		{verdict.Limited, 200, Blocked},
		{verdict.Limited, 503, Blocked},
		{verdict.Challenge, 200, Blocked},
		{verdict.Challenge, 403, Blocked},
		{verdict.Capacity, 503, Failed},
		{verdict.Capacity, 429, Blocked},
		{verdict.ExitTrouble, 200, Failed},
		{verdict.ExitTrouble, 429, Failed}, // the provider's word, not the origin's
		{verdict.ExitTrouble, 407, Failed},
		{verdict.Error, 500, Failed},
	} {
		if got := OutcomeOf(tt.kind, tt.status); got != tt.want {
			t.Errorf("%v, %d: got %v, want %v", tt.kind, tt.status, got, tt.want)
		}
	}
}

func TestOutcomeNames(t *testing.T) {
	seen := map[string]bool{"unknown": true}
	for _, o := range Outcomes() {
		if seen[o.String()] {
			t.Errorf("outcome %d is called %q", o, o)
		}
		seen[o.String()] = true
	}
	if got := numOutcomes.String(); got != "unknown" {
		t.Errorf("no outcome is called %q", got)
	}
}

func TestTraffic(t *testing.T) {
	tally := newTally("store", "E-017")
	tally.AddExchange(Useful, 100, 2000)
	tally.AddExchange(Useful, 1, 0)
	tally.AddPart(Unseen, 7, 8)
	tally.AddPart(Unseen, 3, 2)
	tally.AddExchange(Unseen, 0, 0)
	tally.AddExchange(Outcome(200), 5, 5) // must not write elsewhere
	for _, o := range Outcomes() {
		want := map[Outcome]Traffic{Useful: {2, 101, 2000}, Unseen: {2, 15, 15}}[o]
		if got := tally.Traffic(o); got != want {
			t.Errorf("%v: got %+v, want %+v", o, got, want)
		}
	}
	if got := tally.Traffic(Useful).Bytes(); got != 2101 {
		t.Errorf("got %d bytes, want 2101", got)
	}
	if n := testing.AllocsPerRun(100, func() { tally.AddExchange(Failed, 1, 1) }); n != 0 {
		t.Errorf("AddExchange allocates %v times", n)
	}
	tally.CountCode(429)
	for code, want := range map[int]uint64{429: 1, 200: 0, 0: 0, 99: 0, 600: 0} {
		if got := tally.Code(code); got != want {
			t.Errorf("code %d: got %d, want %d", code, got, want)
		}
	}
}

func TestPrice(t *testing.T) {
	p := &Policy{Exits: []Exit{
		{Name: "alias", SameAs: "E-017", Price: 1},
		{Name: "E-017", Price: 4.2},
		{Name: "E-018"},
		{Name: "cheap", SameAs: "E-018", Price: 0.5},
		{Name: "cheaper", SameAs: "E-018", Price: 0.1},
		{Name: "wg0"},
	}}
	for exit, want := range map[string]float64{
		"E-017": 4.2, "E-017/abc": 4.2, "E-017/10001/abc": 4.2, "E-017/other": 4.2,
		"E-018": 0.5, "wg0": 0, DirectExit: 0, AllExits: 0, "E-0171": 0, "": 0,
	} {
		if got := p.Price(exit); got != want {
			t.Errorf("%q: got %v, want %v", exit, got, want)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	e := mustEngine(t, 8, nil, budget("b", perBoth, sec))
	session := func(n int) string { return fmt.Sprintf("E-017/%d", n) }
	for i := range maxSessions {
		if got := e.Meter(session(i)).Exit; got != session(i) {
			t.Fatalf("session %d is counted as %s", i, got)
		}
	}
	if got := e.Dropped(); got != 0 {
		t.Errorf("%d dropped, want none", got)
	}
	for range 3 { // asking again drops no more
		for i := range 20 {
			if got, want := e.Meter(session(maxSessions+i)).Exit, "E-017/other"; got != want {
				t.Errorf("one more is counted as %s, want %s", got, want)
			}
			if got, want := e.Tally("store", fmt.Sprintf("rotator/10001/%d", i)).Exit, "rotator/other"; got != want {
				t.Errorf("one of another exit is counted as %s, want %s", got, want)
			}
		}
	}
	if got := e.Dropped(); got > 40 || got < 35 { // hashes may meet
		t.Errorf("%d dropped, want 40", got)
	}
	for _, exit := range []string{session(0), session(maxSessions - 1), "E-018", DirectExit, AllExits} {
		if got := e.Meter(exit).Exit; got != exit {
			t.Errorf("%s is counted as %s", exit, got)
		}
	}
	more := session(maxSessions)
	e.Tally("store", more)
	if n := testing.AllocsPerRun(100, func() { e.Tally("store", more); e.Meter(more); e.Meter(session0) }); n != 0 {
		t.Errorf("Tally and Meter allocate %v times", n)
	}
}

const session0 = "E-017/0"

func TestTalliesOfSessionsLeaveRoom(t *testing.T) {
	e := mustEngine(t, 8, nil, budget("b", perBoth, sec))
	for i := range maxTallies {
		e.Tally(fmt.Sprintf("dest-%d", i/900), fmt.Sprintf("E-017/%d", i%900))
	}
	if got := len(e.Tallies()); got > maxTallies/2+10 {
		t.Errorf("%d tallies, want about %d", got, maxTallies/2)
	}
	if got := e.Tally("new", "E-017/1"); got.Destination != "new" || got.Exit != "E-017/other" {
		t.Errorf("one more is %s, %s, want new, E-017/other", got.Destination, got.Exit)
	}
	if got := e.Tally("new", "E-018"); got.Destination != "new" || got.Exit != "E-018" {
		t.Errorf("an exit of the policy file is %s, %s", got.Destination, got.Exit)
	}
	if got := e.Tally("dest-0", "E-017/1"); got.Exit != "E-017/1" {
		t.Errorf("what had its name is now %s", got.Exit)
	}
}

func TestLabelsAgreeUnderContention(t *testing.T) {
	var x exitLabels
	seed := maphash.MakeSeed()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2 * maxSessions {
				exit := fmt.Sprintf("E-%d/%d", i%3, i)
				first := x.of(seed, exit)
				if again := x.of(seed, exit); again != first {
					t.Errorf("%s is counted as %s, then as %s", exit, first, again)
				}
			}
		})
	}
	wg.Wait()
	if n := len(*x.known.Load()); n > maxSessions+3 {
		t.Errorf("%d labels, want at most %d and one for each exit", n, maxSessions)
	}
}
