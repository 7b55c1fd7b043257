// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fake is a backend of fixed answers.
type fake struct {
	lanes  []Lane
	since  time.Duration
	events []Event
	lane   string
	d      time.Duration
}

func (f *fake) Status() Status { return Status{Version: "v1", PID: 7} }
func (f *fake) Lanes() []Lane  { return f.lanes }
func (f *fake) Flows() []Flow  { return nil }

func (f *fake) Counts() Counts {
	return Counts{
		Pairs:    []PairCounts{{Destination: "store", Exit: "direct", Sent: 9, Limited: map[string]uint64{"limited": 2}, Refused: map[string]uint64{}}},
		PassedBy: map[string]uint64{"heartbeat": 1},
		QUIC:     map[string]uint64{"store": 3},
		Sight:    SightCounts{Open: map[string]int64{"blind": 1}, Answers: map[string]uint64{}, Doubts: map[string]uint64{"no_keys": 4}},
	}
}

func (f *fake) Explain(_ context.Context, q Question) (Explanation, error) {
	if q.URL == "" {
		return Explanation{}, errors.New("no URL")
	}
	return Explanation{
		URL: q.URL, Method: q.Method, Exit: q.Exit,
		Budgets: []Matched{{Budget: "store", Matches: true, Why: "it does", Wait: 1.5, State: &f.lanes[0]}},
		Next:    &Next{Outcome: NextWaits, Wait: 1.5},
	}, nil
}

func (f *fake) Exits(since time.Duration) Exits {
	f.since = since
	to := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	score := 0.75
	use := Use{
		Requests: 10, TooMany: 3, Refused: 1, Price: 4.2,
		Connections: Connections{Redirected: 5, Untouched: 1},
		Outcomes:    map[string]Traffic{"useful": {7, 100, 2000}, "unseen": {1, 5, 6}},
	}
	use.Estimate()
	return Exits{
		From: to.Add(-time.Hour), To: to,
		Exits: []Exit{{Exit: "E-017/ä=1", Use: use, PerSecond: 1.5, Lockstep: &score, Closed: 2, ClosedFor: 3}, {Exit: "direct", Use: Use{Outcomes: map[string]Traffic{}}}},
		Pairs: []Pair{{Destination: "store", Exit: "E-017/ä=1", Use: use}},
	}
}

func (f *fake) Events(ctx context.Context, follow, dispatches bool, each func(Event) error) error {
	for _, e := range f.events {
		if e.Kind == "dispatch" && !dispatches {
			continue
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if follow {
		<-ctx.Done()
	}
	return nil
}

func (f *fake) Cooldown(lane string, d time.Duration) error {
	if lane == "none/-/-" {
		return errors.New("no such lane")
	}
	f.lane, f.d = lane, d
	return nil
}

// serve runs a daemon's socket in a new folder, until the test ends.
func serve(t *testing.T, b Backend) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "made", "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, b, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("the socket is still there after the end")
		}
	})
	return NewClient(path)
}

func TestRoundTrip(t *testing.T) {
	b := &fake{lanes: []Lane{{Lane: "store/a/direct", Rate: 0.5, Open: true}}}
	c := serve(t, b)
	ctx := t.Context()

	status, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := b.Status(); !reflect.DeepEqual(status, want) {
		t.Errorf("status: got %+v, want %+v", status, want)
	}
	lanes, err := c.Lanes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(lanes, b.lanes) {
		t.Errorf("lanes: got %+v, want %+v", lanes, b.lanes)
	}
	flows, err := c.Flows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if flows == nil || len(flows) != 0 {
		t.Errorf("flows: got %#v, want an empty list", flows)
	}
}

func TestCounts(t *testing.T) {
	b := &fake{}
	got, err := serve(t, b).Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := b.Counts(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestExplain(t *testing.T) {
	b := &fake{lanes: []Lane{{Lane: "store/a/direct"}}}
	c := serve(t, b)
	// What the question says must arrive as it was written.
	q := Question{URL: "https://a.example/x?y=1&z=%2F#part", Method: "POST", Exit: "E-017/ä=1&"}
	got, err := c.Explain(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := b.Explain(t.Context(), q); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := c.Explain(t.Context(), Question{}); err == nil || err.Error() != "no URL" {
		t.Errorf("got error %v, want that of the daemon", err)
	}
}

func TestExits(t *testing.T) {
	b := &fake{}
	c := serve(t, b)
	for _, since := range []time.Duration{0, 90 * time.Minute, MaxSince} {
		got, err := c.Exits(t.Context(), since)
		if err != nil {
			t.Fatal(err)
		}
		if b.since != since {
			t.Errorf("the daemon was asked for %v, want %v", b.since, since)
		}
		if want := b.Exits(since); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	for since, want := range map[time.Duration]string{
		25 * time.Hour: "duration 25h0m0s: must be above zero and at most 24h0m0s, which is what the daemon remembers",
		-time.Second:   "duration -1s: must be above zero and at most 24h0m0s, which is what the daemon remembers",
	} {
		if _, err := c.Exits(t.Context(), since); err == nil || err.Error() != want {
			t.Errorf("%v: got error %v, want %q", since, err, want)
		}
	}
	if _, err := ParseSince("soon"); err == nil {
		t.Error("got no error for what is no duration")
	}
}

func TestEstimate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		use    Use
		waste  float64
		cost   float64
		seen   bool
		priced bool
	}{
		{"nothing", Use{}, 0, 0, false, false},
		{"no price", Use{Outcomes: map[string]Traffic{"useful": {1, 1e9, 0}}}, 0, 0, true, false},
		{"both ways count", Use{Price: 4.2, Outcomes: map[string]Traffic{"useful": {1, 5e8, 1e9}}}, 0, 6.3, true, true},
		{"waste costs as much", Use{Price: 2, Outcomes: map[string]Traffic{"useful": {1, 0, 6e9}, "redirect": {1, 0, 1e9}, "blocked": {1, 0, 2e9}, "failed": {1, 1e9, 0}}}, 0.4, 20, true, true},
		{"what nobody sees costs, too", Use{Price: 1, Outcomes: map[string]Traffic{"unseen": {1, 1e9, 1e9}}}, 0, 2, false, true},
		{"and tells of no waste", Use{Price: 1, Outcomes: map[string]Traffic{"unseen": {1, 1e9, 1e9}, "useful": {1, 1e9, 0}, "failed": {1, 1e9, 0}}}, 0.5, 4, true, true},
		{"nothing through it yet", Use{Price: 1, Outcomes: map[string]Traffic{"useful": {}}}, 0, 0, false, true},
	} {
		u := tt.use
		u.Estimate()
		for _, f := range []struct {
			name  string
			got   *float64
			want  float64
			known bool
		}{{"waste", u.Waste, tt.waste, tt.seen}, {"cost", u.Cost, tt.cost, tt.priced}} {
			if (f.got != nil) != f.known || f.known && math.Abs(*f.got-f.want) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v, known %v", tt.name, f.name, f.got, f.want, f.known)
			}
		}
	}
}

func TestCooldown(t *testing.T) {
	b := &fake{}
	c := serve(t, b)
	for _, d := range []time.Duration{90 * time.Second, 0} {
		if err := c.Cooldown(t.Context(), "store/a/direct", d); err != nil {
			t.Fatal(err)
		}
		if b.lane != "store/a/direct" || b.d != d {
			t.Errorf("got lane %q and duration %v, want store/a/direct and %v", b.lane, b.d, d)
		}
	}
	for _, tt := range []struct {
		lane string
		d    time.Duration
		want string
	}{
		{"none/-/-", time.Second, "no such lane"},
		{"store/a/direct", 25 * time.Hour, "duration 25h0m0s: must be above zero and at most 24h0m0s"},
		{"store/a/direct", -time.Second, "duration -1s: must be above zero and at most 24h0m0s"},
		{"", time.Second, "no lane given"},
	} {
		if err := c.Cooldown(t.Context(), tt.lane, tt.d); err == nil || err.Error() != tt.want {
			t.Errorf("%q for %v: got error %v, want %q", tt.lane, tt.d, err, tt.want)
		}
	}
}

func TestEvents(t *testing.T) {
	b := &fake{events: []Event{{Kind: "cooldown", Mono: 1}, {Kind: "dispatch", Mono: 2}, {Kind: "reload", Mono: 3}}}
	c := serve(t, b)
	for _, tt := range []struct {
		dispatches bool
		want       []uint64
	}{
		{false, []uint64{1, 3}},
		{true, []uint64{1, 2, 3}},
	} {
		var got []uint64
		err := c.Events(t.Context(), false, tt.dispatches, func(e Event) error {
			got = append(got, e.Mono)
			return nil
		})
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("dispatches %v: got %v, %v, want %v", tt.dispatches, got, err, tt.want)
		}
	}

	// A stream shows what there is at once and stays open.
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := c.Events(ctx, true, false, func(Event) error {
		if seen++; seen == 2 {
			cancel()
		}
		return nil
	})
	if err != nil || seen != 2 {
		t.Errorf("follow: got %d events and error %v, want 2 and none", seen, err)
	}
}

// TestFollowersDoNotHoldUpTheEnd ends a daemon that somebody follows.
func TestFollowersDoNotHoldUpTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ln, &fake{events: []Event{{Kind: "reload"}}}, slog.New(slog.DiscardHandler))
	}()
	err = NewClient(path).Events(t.Context(), true, false, func(Event) error {
		cancel()
		return nil
	})
	if err != nil {
		t.Errorf("follow: got error %v at the daemon's end, want none", err)
	}
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestPeerCheck(t *testing.T) {
	h := newHandler(&fake{}, slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		name string
		peer *peer
		want int
	}{
		{"root", &peer{uid: 0}, 200},
		{"the daemon's user", &peer{uid: 1000}, 200},
		{"another user", &peer{uid: 1001}, 403},
		{"no credentials", &peer{err: errors.New("read peer credentials: no")}, 403},
		{"no connection known", nil, 403},
	} {
		req := httptest.NewRequest("GET", "/v1/status", nil)
		if tt.peer != nil {
			req = req.WithContext(context.WithValue(req.Context(), peerKey{}, tt.peer))
		}
		rec := httptest.NewRecorder()
		authorized(h, []uint32{0, 1000}).ServeHTTP(rec, req)
		if rec.Code != tt.want {
			t.Errorf("%s: got status %d, want %d", tt.name, rec.Code, tt.want)
		}
		if tt.want == 403 && !strings.Contains(rec.Body.String(), `{"error":"`) {
			t.Errorf("%s: got body %q, want an error in JSON", tt.name, rec.Body)
		}
	}
}

func TestPeerUID(t *testing.T) {
	ln, err := Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if got, err := peerUID(in); err != nil || got != uint32(os.Geteuid()) {
		t.Errorf("got uid %d, %v, want %d", got, err, os.Geteuid())
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := peerUID(a); err == nil {
		t.Error("got no error for a connection that is no unix socket")
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode: got %o, want 600", got)
	}
	if _, err := Listen(path); !errors.Is(err, ErrRunning) {
		t.Errorf("second daemon: got error %v, want %v", err, ErrRunning)
	}
	// As kill -9 leaves it: the socket is there, nobody listens.
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	again, err := Listen(path)
	if err != nil {
		t.Fatalf("after a dead daemon: %v", err)
	}
	again.Close()

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.HasSuffix(err.Error(), "is there and no socket") {
		t.Errorf("a file in the way: got error %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file in the way is gone: %v", err)
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := NewClient(filepath.Join(t.TempDir(), "none")).Status(t.Context())
	if !errors.Is(err, ErrNotRunning) {
		t.Errorf("got error %v, want %v", err, ErrNotRunning)
	}
}

func FuzzDecodeCooldown(f *testing.F) {
	for _, seed := range []string{
		`{"lane":"store/a/direct","duration":"30s"}`,
		`{"lane":"store/a/direct","clear":true}`,
		`{"lane":"a/b/c","duration":"30s","clear":true}`,
		`{"lane":"a/b/c","duration":"-1h"}`,
		`{"unknown":1}`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		lane, d, err := decodeCooldown(bytes.NewReader(text))
		switch {
		case err != nil && (lane != "" || d != 0):
			t.Errorf("got lane %q and duration %v with error %v", lane, d, err)
		case err == nil && (lane == "" || d < 0 || d > maxCooldown):
			t.Errorf("got lane %q and duration %v without an error", lane, d)
		}
		if err == nil {
			var body Cooldown
			if json.NewDecoder(bytes.NewReader(text)).Decode(&body); body.Clear != (d == 0) {
				t.Errorf("clear is %v and the duration %v", body.Clear, d)
			}
		}
	})
}
