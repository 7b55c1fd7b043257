// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// shows stands in for probes: it says of which processes they are.
type shows struct{ yes atomic.Bool }

func (s *shows) Shows(uint32) bool { return s.yes.Load() }

// probing is start for budgets whose connections probes may show. All clients
// are process 7, with the sockets 1, 2, ….
func probing(t testing.TB, s *shows, budgets ...*policy.Budget) *bench {
	for _, b := range budgets {
		b.TLS = policy.Observe
	}
	b := startWith(t, Config{Probes: s}, 0, budgets...)
	b.pid = 7
	return b
}

// showing is an answer that probes showed, found by a socket.
func showing(cookie uint64, path string) *Shown {
	return &Shown{
		PID: 7, Cookie: cookie, Source: "nested", Method: "GET", Host: "origin.test", Path: path,
		Answer: Head{Status: 429, At: time.Now(), Fields: [][2]string{{"Retry-After", "3"}}},
	}
}

// An answer that a probe shows closes the lane of its request, whichever
// connection comes next, also when its own has ended.
func TestShown(t *testing.T) {
	s := newSecret(t, false, "answer")
	for _, tc := range []struct {
		name  string
		shows bool // the process was known to
		close bool // the connection ends before the answer is shown
	}{{"first", false, false}, {"known", true, false}, {"closed", true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			probe := new(shows)
			probe.yes.Store(tc.shows)
			api := budget("origin.test", plenty)
			api.Name, api.Match.Path = "api", "/api/"
			all := budget("origin.test", plenty)
			all.Name, all.Per = "all", policy.PerDestination
			b := probing(t, probe, api, all)
			client := s.client(b, false)
			get(t, client, "https://origin.test/")
			if tc.close {
				client.CloseIdleConnections()
				waitFor(t, "the connection to end", func() bool { return b.conns.Load() == 0 })
			}
			if !b.Show(showing(1, "/api/x")) {
				t.Fatal("the connection is not known")
			}
			waitFor(t, "the lane to close", func() bool {
				for _, l := range b.engine.Lanes() {
					if l.Key.Budget == "api" && l.Cell.OpenUntil.Load() > 0 {
						return true
					}
				}
				return false
			})
			if l := laneOf(t, b, "api"); l.Cell.Limited.Load() != 1 {
				t.Errorf("%d limits noted", l.Cell.Limited.Load())
			}
			n := b.Insight().Counts()
			if n.Answers[policy.SightUprobe] != 1 {
				t.Errorf("answers: %v", n.Answers)
			}
			if want := int64(1); !tc.close && (n.Open[policy.SightUprobe] != want || n.Open[policy.SightBlind] != 0) {
				t.Errorf("open: %v", n.Open)
			}
			client.CloseIdleConnections()
			waitFor(t, "the connection to end", func() bool { return b.conns.Load() == 0 })
			for _, l := range b.engine.Lanes() {
				if got := l.InFlight.Load(); got != 0 {
					t.Errorf("%d under way in %s", got, l.ID())
				}
			}
		})
	}
}

// The flight that is the probe of a lane that reopened is judged by the answer
// that is shown, and the rest follow.
func TestShownReopens(t *testing.T) {
	var mu sync.Mutex
	n := 0
	dest := tlsOrigin(t, false, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		n++
		mu.Unlock()
	})
	probe := new(shows)
	probe.yes.Store(true)
	b := probing(t, probe, budget("origin.test", plenty))
	client := tlsClient(b, dest, false, nil)
	get(t, client, "https://origin.test/")
	again := showing(1, "/")
	again.Answer.Fields = [][2]string{{"Retry-After", "1"}}
	b.Show(again)
	lane := laneOf(t, b, "test")
	waitFor(t, "the lane to close", func() bool { return lane.Cell.OpenUntil.Load() > 0 })
	slow := lane.Cell.Interval.Load()
	get(t, client, "https://origin.test/") // waits, and is the probe
	ok := showing(1, "/")
	ok.Answer.Status, ok.Answer.Fields = 200, nil
	b.Show(ok)
	waitFor(t, "the lane to recover", func() bool { return lane.Cell.Interval.Load() < slow })
	get(t, client, "https://origin.test/")
}

// What belongs to no connection that is known is counted, and nothing is made
// of it.
func TestShownUnknown(t *testing.T) {
	s := newSecret(t, false, "answer")
	b := probing(t, new(shows), budget("origin.test", plenty))
	client := s.client(b, false)
	get(t, client, "https://origin.test/")
	strange := showing(99, "/")
	otherPID := showing(1, "/")
	otherPID.PID = 8
	nothing := showing(0, "/")
	random := showing(1, "/") // the random counts, not what the socket seemed to be
	random.HasRandom, random.Random = true, [32]byte{1, 2, 3}
	for _, x := range []*Shown{strange, otherPID, nothing, random} {
		if b.Show(x) {
			t.Errorf("%+v was taken for a known connection", x)
		}
	}
	if got := b.Insight().Counts().Unknown; got != 4 {
		t.Errorf("%d unknown counted, want 4", got)
	}
	if got := laneOf(t, b, "test").Cell.OpenUntil.Load(); got != 0 {
		t.Error("the lane was closed")
	}
	client.CloseIdleConnections()
	waitFor(t, "the connection to be forgotten", func() bool {
		b.registry.mu.Lock()
		defer b.registry.mu.Unlock()
		return len(b.registry.byCookie) == 0 && len(b.registry.byRandom) == 0
	})
}
