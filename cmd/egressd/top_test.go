// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// counting is a daemon's backend whose lanes go on sending: 5 and 0.5 requests
// a second.
type counting struct{ started time.Time }

func (c counting) Status() admin.Status {
	return admin.Status{Version: "v1", PID: 77, Started: c.started, Config: admin.Config{OK: true}, Lanes: 2, Waiting: 3}
}

func (c counting) sent(perSecond float64) uint64 {
	return uint64(time.Since(c.started).Seconds() * perSecond)
}

func (c counting) Lanes() []admin.Lane {
	opens := c.started.Add(time.Hour)
	return []admin.Lane{
		{Lane: "fast/a.example/direct", Budget: "fast", Rate: 10, BaseRate: 10, Sent: c.sent(5), Open: true, Waiting: 3, Mode: "enforce"},
		{
			Lane: "limited/b.example/direct", Budget: "limited", Rate: 0.5, BaseRate: 1, Sent: c.sent(0.5), Limited: 12, Mode: "enforce",
			OpensAt: &opens, ClosedFor: time.Until(opens).Seconds(), Reason: "limited, 1h as asked",
		},
	}
}

func (c counting) Flows() []admin.Flow { return nil }

func (c counting) Exits(time.Duration) admin.Exits {
	return admin.Exits{Exits: []admin.Exit{{Exit: "direct", Use: admin.Use{Requests: c.sent(5.5), TooMany: 12}, PerSecond: 5.5, Closed: 1, ClosedFor: 3600}}}
}

func (c counting) Counts() admin.Counts { return admin.Counts{} }

func (c counting) Explain(context.Context, admin.Question) (admin.Explanation, error) {
	return admin.Explanation{}, errors.New("not asked for")
}

func (c counting) Events(_ context.Context, _, _ bool, f func(admin.Event) error) error {
	return f(admin.Event{Time: c.started, Kind: "penalty", Lane: "limited/b.example/direct", Wait: 3600, Detail: "limited, 1h as asked"})
}

func (c counting) Cooldown(string, time.Duration) error { return errors.New("not asked for") }

// serveCounting serves that backend on a socket until stop is called, which
// the end of the test does, too.
func serveCounting(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ln, err := admin.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- admin.Serve(ctx, ln, counting{time.Now().Add(-time.Minute)}, slog.New(slog.DiscardHandler))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// startTop shows it in a terminal.
func startTop(t *testing.T, width, height int) (p *pty, socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "admin.sock")
	stop = serveCounting(t, socket)
	p = newPTY(t, width, height)
	p.start("env", "TERM=xterm", "LC_ALL=C.UTF-8", "egressd", "top", "--every", "100ms", "--socket", socket)
	return p, socket, stop
}

func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	p, socket, stop := startTop(t, 80, 24)
	before := p.mode()
	screen := p.waitScreen("a rate", func(s string) bool {
		return strings.Contains(s, "fast/a.example/direct") && strings.Contains(s, "10.0/s") && !strings.Contains(s, " 0%     3")
	})
	for _, want := range []string{
		"egressd v1, pid 77, up 1m0", "\nEXIT ", "\ndirect ", "\nLANE ", "  USE  WAIT  429S  STATE\n",
		"closed 58m", "penalty limited/b.example/direct 1h", "q quit",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("got\n%s\nwant it to contain %q", screen, want)
		}
	}
	mustFit(t, screen, 80, 24)

	// The cooldown counts down.
	left := func(s string) string {
		_, rest, _ := strings.Cut(s, "closed ")
		text, _, _ := strings.Cut(rest, ":")
		return text
	}
	was := left(screen)
	p.waitScreen("another countdown than "+was, func(s string) bool { return left(s) != was })

	// Keys.
	p.send("s")
	p.waitFor("sort: sent")
	p.send("\x1b[D\x1b[D")
	p.waitFor("sort: name")
	p.send("r")
	p.waitFor("sort: name reversed")
	p.send("p")
	p.waitFor("PAUSED")
	p.send("p")
	p.waitScreen("no pause", func(s string) bool { return !strings.Contains(s, "PAUSED") })

	// Another size.
	p.resize(40, 10)
	screen = p.waitScreen("the narrow layout", func(s string) bool { return !strings.Contains(s, "BUDGET") })
	mustFit(t, screen, 40, 10)
	p.resize(80, 24)

	// A daemon that ends and comes back.
	stop()
	p.waitFor("NO ANSWER: no egressd is running")
	serveCounting(t, socket)
	p.waitScreen("an answer again", func(s string) bool { return strings.HasPrefix(s, "egressd v1") })

	if mode := p.mode(); mode == before {
		t.Error("the terminal is not in a mode of its own while top runs: the test shows nothing")
	}
	p.send("q")
	if err := p.wait(); err != nil {
		t.Errorf("q: got %v, want status 0", err)
	}
	mustRestore(t, p, before)
}

// mustFit holds that a frame is no larger than the terminal.
func mustFit(t *testing.T, screen string, width, height int) {
	t.Helper()
	lines := strings.Split(screen, "\n")
	if len(lines) > height {
		t.Errorf("got %d lines, want %d at most:\n%s", len(lines), height, screen)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > width {
			t.Errorf("got a line of %d characters, want %d at most: %q", n, width, l)
		}
	}
}

// mustRestore holds that the terminal is as it was: its mode, the screen that
// was there before, and the cursor.
func mustRestore(t *testing.T, p *pty, before unix.Termios) {
	t.Helper()
	if got := p.mode(); got != before {
		t.Errorf("got terminal mode %+v, want %+v as before", got, before)
	}
	const leave = "\x1b[?25h\x1b[?1049l"
	for end := time.Now().Add(10 * time.Second); !strings.HasSuffix(p.written(), leave); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			text := p.written()
			t.Fatalf("got the end %q, want %q", text[max(0, len(text)-100):], leave)
		}
	}
}

func TestTopEndsBySignals(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(p *pty)
	}{
		{"ctrl-C", func(p *pty) { p.send("\x03") }},
		{"SIGTERM", func(p *pty) { p.signal(unix.SIGTERM) }},
		{"SIGHUP", func(p *pty) { p.signal(unix.SIGHUP) }},
		{"SIGQUIT", func(p *pty) { p.signal(unix.SIGQUIT) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _, _ := startTop(t, 80, 24)
			before := p.mode()
			p.waitFor("fast/a.example/direct")
			tt.end(p)
			if err := p.wait(); err != nil {
				t.Errorf("got %v, want status 0", err)
			}
			mustRestore(t, p, before)
		})
	}
}

func (p *pty) signal(s unix.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestTopStops holds that a stopped top has given its terminal back, and takes
// it again when it goes on.
func TestTopStops(t *testing.T) {
	t.Parallel()
	p, _, _ := startTop(t, 80, 24)
	before := p.mode()
	p.waitFor("fast/a.example/direct")
	p.signal(unix.SIGTSTP)
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
	}
	for end := time.Now().Add(20 * time.Second); state() != "T"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got state %s, want it stopped", state())
		}
	}
	mustRestore(t, p, before)
	frames := strings.Count(p.written(), "\x1b[?1049h")
	p.signal(unix.SIGCONT)
	p.waitScreen("another screen", func(string) bool { return strings.Count(p.written(), "\x1b[?1049h") > frames })
	p.waitFor("fast/a.example/direct")
	p.send("q")
	if err := p.wait(); err != nil {
		t.Errorf("got %v, want status 0", err)
	}
	mustRestore(t, p, before)
}

func TestTopWithoutTerminal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "admin.sock")
	serveCounting(t, socket)
	out, err := exec.Command("egressd", "top", "--once", "--every", "200ms", "--socket", socket).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nfast/a.example/direct ", " 10.0/s ", " 12  closed "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("got\n%s\nwant it to contain %q", out, want)
		}
	}
	if strings.ContainsRune(string(out), '\x1b') {
		t.Errorf("got\n%q\nwant no sequences where nobody sees colours", out)
	}
	text, err := exec.Command("egressd", "top", "--socket", socket).CombinedOutput()
	var exit *exec.ExitError
	if want := "egressd: standard output is no terminal; --once prints one frame\n"; !errors.As(err, &exit) || exit.ExitCode() != 1 || string(text) != want {
		t.Errorf("got %v and %q, want status 1 and %q", err, text, want)
	}
}

// TestTopColours holds that colours can be had without.
func TestTopColours(t *testing.T) {
	for _, without := range []bool{false, true} {
		socket := filepath.Join(shortDir(t), "admin.sock")
		serveCounting(t, socket)
		p := newPTY(t, 80, 24)
		args := []string{"env", "TERM=xterm", "NO_COLOR="}
		if without {
			args[2] = "NO_COLOR=1"
		}
		p.start(append(args, "egressd", "top", "--every", "100ms", "--socket", socket)...)
		p.waitFor("limited/b.example/direct")
		if got := strings.Contains(p.written(), "\x1b[31m"); got == without {
			t.Errorf("NO_COLOR %v: got colours %v", without, got)
		}
		p.send("q")
		if err := p.wait(); err != nil {
			t.Error(err)
		}
	}
}
