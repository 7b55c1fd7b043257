// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// tmux is a terminal multiplexer of the test's own, with one window.
type tmux struct {
	t   *testing.T
	dir string // of its socket
}

// newTmux runs a command in a terminal of that size, with more in its
// environment. The server goes with the test.
func newTmux(t *testing.T, width, height string, env []string, command ...string) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Fatalf("%v: scripts/install-deps.sh test installs it", err)
	}
	m := &tmux{t, shortDir(t)}
	m.run(append([]string{"-u", "-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "env"}, append(env, command...)...)...)
	t.Cleanup(func() {
		// It has ended if its window has.
		_ = m.command("kill-server").Run()
	})
	return m
}

func (m *tmux) command(args ...string) *exec.Cmd {
	return exec.Command("tmux", append([]string{"-S", filepath.Join(m.dir, "tmux")}, args...)...)
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// screen is what one sees, with the sequences of colours if they are asked for.
func (m *tmux) screen(flags ...string) string {
	m.t.Helper()
	return m.run(append([]string{"capture-pane", "-p"}, flags...)...)
}

func (m *tmux) waitScreen(what string, good func(screen string) bool) string {
	m.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		screen := m.screen()
		switch {
		case good(screen):
			return screen
		case time.Now().After(end):
			m.t.Fatalf("no screen with %s; the last one:\n%s", what, screen)
		}
	}
}

func (m *tmux) waitFor(text string) string {
	m.t.Helper()
	return m.waitScreen(text, func(screen string) bool { return strings.Contains(screen, text) })
}

// TestTopInTmux looks at what people see in a real terminal.
func TestTopInTmux(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "admin.sock")
	serveCounting(t, socket)
	m := newTmux(t, "80", "24", []string{"LC_ALL=C.UTF-8"}, "egressd", "top", "--every", "100ms", "--socket", socket)
	screen := m.waitScreen("rates, a sparkline and a cooldown", func(s string) bool {
		return strings.Contains(s, "10.0/s") && !strings.Contains(s, " 0%     3") && strings.ContainsAny(s, "▁▂▃▄▅▆▇█") && strings.Contains(s, "closed 58m")
	})
	lines := strings.Split(strings.TrimRight(screen, "\n"), "\n")
	if len(lines) != 24 {
		t.Errorf("got %d lines, want all of 24:\n%s", len(lines), screen)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("got a line of %d characters: %q", n, l)
		}
	}
	for _, want := range []string{
		"egressd v1, pid 77", "\nEXIT ", "\ndirect ", "\nLANE ", "fast/a.example/direct", " ██████ ",
		"q quit  ↑↓ scroll  ←→ sort: use  r reverse  p pause",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("got\n%s\nwant it to contain %q", screen, want)
		}
	}
	if !strings.Contains(m.screen("-e"), "\x1b[31m") {
		t.Error("a lane that is closed has no colour")
	}

	// The lanes stand in the order that is asked for: by use fast, by limits the other.
	first := func(a, b string) func(string) bool {
		return func(s string) bool {
			i, k := strings.Index(s, "\n"+a), strings.Index(s, "\n"+b)
			return i >= 0 && k > i
		}
	}
	m.run("send-keys", "s")
	m.waitFor("sort: sent")
	m.run("send-keys", "Right", "Right")
	m.waitFor("sort: 429s")
	m.waitScreen("the limited lane first", first("limited/", "fast/"))
	m.run("send-keys", "r")
	m.waitFor("sort: 429s reversed")
	m.waitScreen("the limited lane last", first("fast/", "limited/"))
	m.run("send-keys", "Left", "p")
	m.waitFor("PAUSED")
	m.run("send-keys", "p")

	m.run("resize-window", "-x", "40", "-y", "10")
	m.waitScreen("the narrow layout", func(s string) bool { return strings.Contains(s, "LANE") && !strings.Contains(s, "BUDGET") })
	m.run("resize-window", "-x", "80", "-y", "24")
	m.waitFor("BUDGET")
	m.run("send-keys", "q")
	for end := time.Now().Add(20 * time.Second); m.command("has-session").Run() == nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("q did not end it:\n%s", m.screen())
		}
	}
}

// TestTopWithoutMuch has a terminal without colours, and one that can do nothing
// but write on, in a locale that has no more than ASCII.
func TestTopWithoutMuch(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		keys bool // are shown, as somebody may press them
	}{
		{"NO_COLOR", []string{"LC_ALL=C", "NO_COLOR=1"}, true},
		{"dumb", []string{"LC_ALL=C", "TERM=dumb"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(shortDir(t), "admin.sock")
			serveCounting(t, socket)
			m := newTmux(t, "80", "24", tt.env, "egressd", "top", "--every", "300ms", "--socket", socket)
			m.waitScreen("a rate and a bar", func(s string) bool {
				return strings.Contains(s, "10.0/s") && strings.Contains(s, "closed 58m") && strings.Contains(s, "######") && !strings.Contains(s, " 0%     3")
			})
			screen := m.screen("-e")
			if strings.ContainsRune(screen, '\x1b') {
				t.Errorf("got\n%q\nwant no sequences", screen)
			}
			if i := strings.IndexFunc(screen, func(r rune) bool { return r >= 0x7f }); i >= 0 {
				t.Errorf("got\n%s\nwant ASCII alone", screen)
			}
			if got := strings.Contains(screen, "q quit"); got != tt.keys {
				t.Errorf("got keys %v, want %v:\n%s", got, tt.keys, screen)
			}
		})
	}
}
