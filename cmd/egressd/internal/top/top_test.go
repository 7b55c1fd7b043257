// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// at is a daemon n seconds after noon. Its lanes send 2, 0 and 0.5 a second.
func at(n int) seen {
	opens := noon.Add(time.Hour)
	u := uint64(n)
	return seen{
		at: noon.Add(time.Duration(n) * time.Second),
		status: admin.Status{
			Version: "v1", PID: 77, Started: noon.Add(-time.Hour), Config: admin.Config{OK: true},
			Kernel: &admin.Kernel{Attached: true, Canary: admin.Canary{At: noon, OK: true}}, Lanes: 3, Flows: 9, Waiting: 4,
		},
		lanes: []admin.Lane{
			{Lane: "api/a.example/direct", Rate: 2, BaseRate: 2, Sent: 100 + 2*u, Waiting: 4, Open: true, Mode: "enforce"},
			{Lane: "store/b.example/E-1", Rate: 0.5, BaseRate: 1, Sent: 50, Limited: 12, ClosedFor: 83 - float64(n), OpensAt: &opens, Reason: "limited, 90s as asked", Mode: "enforce"},
			{Lane: "slow/c\x1b[31m.example/E-2", Rate: 0.5, BaseRate: 1, Sent: 7 + u/2, Open: true, Mode: "enforce"},
		},
		exits: []admin.Exit{
			{Exit: "E-1", Use: admin.Use{Requests: 10 + u, TooMany: 12}, PerSecond: 1, Closed: 1, ClosedFor: 83},
			{Exit: "direct", Use: admin.Use{Requests: 100 + 2*u}, PerSecond: 2},
		},
		events: []admin.Event{
			{Time: noon, Kind: "canary", Detail: "connections are redirected"},
			{Time: noon, Kind: "penalty", Lane: "store/b.example/E-1", Wait: 90, Detail: "limited, \x1b]0;evil\a"},
		},
	}
}

func newTestView(looks int) *view {
	v := newView(Config{State: func(l admin.Lane) string { return "state of " + l.Budget + " open" }})
	for n := range looks {
		v.see(at(n))
	}
	return v
}

func text(lines []line) string {
	var out strings.Builder
	for _, l := range lines {
		out.WriteString(l.text + "\n")
	}
	return out.String()
}

func TestFrame(t *testing.T) {
	lines, _ := newTestView(5).frame(80, 24)
	got := text(lines)
	for _, want := range []string{
		"egressd v1, pid 77, up 1h00m: 3 lanes, 9 connections, 4 waiting\n",
		"EXIT    SENT/S  429S     CLOSED  LAST 30s\n",
		"direct    2.00     0          -  ████\n",
		"E-1       1.00    12  1 (1m23s)",
		"api/a.example/direct",
		"closed 1m19s ██████ ",
		"12:00:00 canary connections are redirected\n",
		"penalty store/b.example/E-1 1m30s limited, ?]0;evil?\n",
		"q quit  ↑↓ scroll  ←→ sort: use  r reverse  p pause\n",
	} {
		if !strings.Contains(got, strings.ReplaceAll(want, "12:00:00", noon.Local().Format(time.TimeOnly))) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
	for i, want := range []struct {
		begins string
		style  style
	}{{"EXIT", title}, {"direct", plain}, {"E-1", alert}, {"LANE", title}, {"api/", warning}, {"slow/", warning}, {"store/", alert}} {
		if l := lines[1+i]; !strings.HasPrefix(l.text, want.begins) || l.style != want.style {
			t.Errorf("line %d: got %+v, want %q in style %d", 1+i, l, want.begins, want.style)
		}
	}
}

// TestSizes holds that a frame fits, whatever the size, and that the lanes are
// what is left in small ones.
func TestSizes(t *testing.T) {
	v := newTestView(40)
	for n := range 100 {
		l := v.seen.lanes[0]
		l.Lane = fmt.Sprintf("many/host%03d.example/direct", n)
		v.seen.lanes = append(v.seen.lanes, l)
	}
	for width := 1; width <= 130; width += 3 {
		for height := 1; height <= 50; height += 2 {
			lines, page := v.frame(width, height)
			if len(lines) > height || page < 1 {
				t.Fatalf("%dx%d: got %d lines and a page of %d", width, height, len(lines), page)
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l.text); n > width {
					t.Fatalf("%dx%d: got a line of %d characters: %q", width, height, n, l.text)
				}
				if strings.ContainsAny(l.text, "\x1b\n\r\a") {
					t.Fatalf("%dx%d: a line has what terminals obey: %q", width, height, l.text)
				}
			}
			if got := text(lines); height >= 5 && width >= 20 && !strings.Contains(got, "\nLANE") && !strings.HasPrefix(got, "LANE") {
				t.Fatalf("%dx%d: got no lanes in\n%s", width, height, got)
			}
		}
	}
}

func TestNarrow(t *testing.T) {
	lines, _ := newTestView(5).frame(40, 12)
	got := text(lines)
	for _, want := range []string{"LANE", "SENT/S", "closed 1m19s\n", "slowed\n", "open\n", "q quit ←→ use"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
	if strings.Contains(got, "BUDGET") {
		t.Errorf("got\n%s\nwant no budgets in so narrow a frame", got)
	}
}

func TestRates(t *testing.T) {
	v := newTestView(1)
	if got := v.rows()[0].perSecond; got != 0 {
		t.Errorf("after one look: got %v/s, want 0", got)
	}
	v = newTestView(21)
	for _, r := range v.rows() {
		want := map[string]float64{"api": 2, "store": 0, "slow": 0.5}[strings.SplitN(r.Lane.Lane, "/", 2)[0]]
		if r.perSecond != want {
			t.Errorf("%s: got %v/s, want %v", r.Lane.Lane, r.perSecond, want)
		}
	}
	if got := v.steps("direct"); len(got) != 20 || got[0] != 2 || got[19] != 2 {
		t.Errorf("got steps %v, want twenty of 2", got)
	}
	// A daemon that was restarted counts anew.
	s := at(22)
	s.status.Started = s.at
	s.lanes[0].Sent = 1
	v.see(s)
	for _, r := range v.rows() {
		if r.perSecond != 0 {
			t.Errorf("after a restart: got %v/s, want 0", r.perSecond)
		}
	}
}

func TestKeys(t *testing.T) {
	v := newTestView(5)
	first := func() string {
		lines, _ := v.frame(80, 24)
		i := slices.IndexFunc(lines, func(l line) bool { return strings.HasPrefix(l.text, "LANE") })
		name, _, _ := strings.Cut(lines[i+1].text, "/")
		return name
	}
	for _, step := range []struct {
		keys string
		want string
	}{
		{"", "api"},                     // by use
		{"\x1b[C\x1b[C\x1b[C", "store"}, // by 429s
		{"r", "api"},                    // the other way round
		{"r\x1bOD\x1bOD\x1bOD", "api"},
		{"h", "api"}, // by name, since the orders go round
		{"r", "store"},
		{"r", "api"},
		{"x\x1b[15~\x1b[1;5A\x1b", "api"}, // nothing of ours
	} {
		keys, _ := decode(step.keys)
		for _, k := range keys {
			if v.press(k, 2) {
				t.Errorf("%q: got the end", step.keys)
			}
		}
		if got := first(); got != step.want {
			t.Errorf("%q: got lane %s first, want %s", step.keys, got, step.want)
		}
	}
	for _, step := range []struct {
		k    key
		want int
	}{{keyUp, 0}, {keyDown, 1}, {keyPageDown, 2}, {keyPageDown, 2}, {keyUp, 1}, {keyPageUp, 0}, {keyDown, 1}, {keyHome, 0}} {
		if v.press(step.k, 5); v.top != step.want {
			t.Errorf("key %d: got lane %d on top, want %d", step.k, v.top, step.want)
		}
	}
	if !v.press(keyQuit, 1) {
		t.Error("q: got no end")
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []key
		rest string
	}{
		{"q", []key{keyQuit}, ""},
		{"\x1b[A\x1b[B", []key{keyUp, keyDown}, ""},
		{"\x1b[5~\x1b[6~ ", []key{keyPageUp, keyPageDown, keyPageDown}, ""},
		{"\x1b", nil, "\x1b"},
		{"r\x1b[", []key{keyReverse}, "\x1b["},
		{"\x1b[1;5", nil, "\x1b[1;5"},
		{"\x1b[1;5Aq", []key{keyQuit}, ""},
		{"\x1bOPq", []key{keyQuit}, ""},
		{"\x1bxq", []key{keyQuit}, ""},
		{"\x1b\x1b[A", []key{keyUp}, ""},
		{"äq", []key{keyQuit}, ""},
	} {
		got, rest := decode(tt.text)
		if !slices.Equal(got, tt.want) || rest != tt.rest {
			t.Errorf("%q: got %v and rest %q, want %v and %q", tt.text, got, rest, tt.want, tt.rest)
		}
	}
}

// FuzzDecode holds that how a text is cut into pieces changes nothing, and
// that what is kept of it does not grow.
func FuzzDecode(f *testing.F) {
	f.Add("\x1b[A\x1bOBq\x1b[1;5C", uint8(3))
	f.Add("\x1b\x1b[[[5~", uint8(2))
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		want, rest := decode(text)
		if len(rest) > longest {
			t.Fatalf("%q: kept %q", text, rest)
		}
		n := min(int(cut), len(text))
		got, half := decode(text[:n])
		more, left := decode(half + text[n:])
		if got = append(got, more...); !slices.Equal(got, want) || left != rest {
			t.Errorf("%q, cut at %d: got %v and %q, want %v and %q", text, n, got, left, want, rest)
		}
	})
}

func TestTrouble(t *testing.T) {
	v := newTestView(3)
	v.seen.status.Config = admin.Config{Error: "egressd.yml:3: bad"}
	v.fail(errors.New("no egressd is running"))
	got := text(must(v.frame(80, 24)))
	for _, want := range []string{"NO ANSWER: no egressd is running\n", "LAST RELOAD FAILED: egressd.yml:3: bad\n", "LANE"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
	if got := text(must(newView(Config{}).frame(80, 24))); !strings.HasPrefix(got, "egressd: waiting for the daemon\nNo lane yet") {
		t.Errorf("before the first look: got\n%s", got)
	}
}

func must(lines []line, _ int) []line { return lines }

func TestSparkline(t *testing.T) {
	for want, all := range map[string][]uint64{"": nil, "  ": {0, 0}, "█": {1}, " ▁▄█": {0, 1, 50, 100}} {
		if got := blocks.sparkline(all); got != want {
			t.Errorf("%v: got %q, want %q", all, got, want)
		}
	}
}

// asked is a daemon of fixed answers.
type asked struct{ n int }

func (a *asked) Status(context.Context) (admin.Status, error) { a.n++; return at(a.n).status, nil }
func (a *asked) Lanes(context.Context) ([]admin.Lane, error)  { return at(a.n).lanes, nil }
func (a *asked) Exits(context.Context, time.Duration) (admin.Exits, error) {
	return admin.Exits{Exits: at(a.n).exits}, nil
}

func (a *asked) Events(_ context.Context, _, _ bool, f func(admin.Event) error) error {
	for n := range keptEvents + 5 {
		if err := f(admin.Event{Time: noon, Kind: fmt.Sprint("kind", n)}); err != nil {
			return err
		}
	}
	return nil
}

func TestOnce(t *testing.T) {
	d := &asked{}
	got, err := Once(t.Context(), Config{Daemon: d, State: func(admin.Lane) string { return "open" }, Every: time.Millisecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d.n != 2 {
		t.Errorf("got %d looks, want two, which a rate takes", d.n)
	}
	for _, want := range []string{"pid 77", "\nEXIT ", "\nLANE ", "api/a.example/direct", " kind5\n", fmt.Sprintf(" kind%d\n", keptEvents+4)} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
	if strings.Contains(got, " kind4\n") || strings.Contains(got, "q quit") {
		t.Errorf("got\n%s\nwant the last events alone, and no keys", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Once(ctx, Config{Daemon: d, Every: time.Hour}, 80); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

// TestGauge holds that a cooldown's bar runs out as the cooldown does, and is full
// again when that is extended.
func TestGauge(t *testing.T) {
	v := newTestView(1)
	look := func(n int, closedFor float64, opens time.Time) string {
		s := at(n)
		s.lanes[1].ClosedFor, s.lanes[1].OpensAt = closedFor, &opens
		v.see(s)
		lines, _ := v.frame(120, 24)
		_, rest, _ := strings.Cut(text(lines), "closed ")
		fields := strings.Fields(rest)
		return fields[1]
	}
	opens := noon.Add(80 * time.Second)
	for _, tt := range []struct {
		n     int
		left  float64
		opens time.Time
		want  string
	}{
		{1, 80, opens, "██████"},
		{41, 40, opens.Add(30 * time.Millisecond), "███░░░"},
		{80, 1, opens, "█░░░░░"},
		{81, 300, opens.Add(5 * time.Minute), "██████"},
	} {
		if got := look(tt.n, tt.left, tt.opens); got != tt.want {
			t.Errorf("%d: got %s, want %s", tt.n, got, tt.want)
		}
	}
}

// TestASCII holds that a frame can be had with ASCII alone.
func TestASCII(t *testing.T) {
	v := newTestView(5)
	v.cfg.ASCII = true
	v.seen.lanes[0].Lane = "api/bücher.example-with-a-name-that-is-much-too-long-for-its-column/direct"
	lines, _ := v.frame(80, 24)
	got := text(lines)
	for i := range len(got) {
		if got[i] >= 0x7f {
			t.Fatalf("got %q at %d of\n%s", got[i], i, got)
		}
	}
	for _, want := range []string{"####", "closed 1m19s ######", "up/down scroll  left/right sort: use"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
}
