// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	quit = unix.SIGQUIT
	hup  = unix.SIGHUP
)

// execute starts a command by egressd exec, under a budget for port 9 that it
// does not meet.
func execute(t testing.TB, h how, args ...string) *process {
	t.Helper()
	h.in = newGroup(t)
	p := start(t, h, append([]string{here.bin, "exec", "--limit", "localhost:9=1/s", "--"}, args...)...)
	g := h.in
	t.Cleanup(func() {
		p.kill()
		if left := g.children(t); len(left) > 0 {
			t.Errorf("egressd exec left cgroups %v", left)
		}
	})
	return p
}

func TestExecStatus(t *testing.T) {
	needRoot(t)
	notExecutable := filepath.Join(shortDir(t), "script")
	mustWrite(t, notExecutable, "#!/bin/sh\n")
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		says   string // on standard error
	}{
		{"done", []string{"true"}, 0, "egressd: no request met a budget\n"},
		{"failed", []string{"sh", "-c", "exit 7"}, 7, "egressd: no request met a budget\n"},
		{"killed", []string{"sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"not_found", []string{"/no/such/command"}, 127, "egressd: run /no/such/command: no such file or directory\n"},
		{"not_executable", []string{notExecutable}, 126, "permission denied\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := execute(t, how{}, tt.args...)
			if got := p.wait(t, 20*time.Second); got != tt.status {
				t.Errorf("got exit status %d, want %d\n%s", got, tt.status, p.stderr.String())
			}
			if got := p.stderr.String(); !strings.Contains(got, tt.says) {
				t.Errorf("got %q on standard error, want %q in it", got, tt.says)
			}
		})
	}
}

func TestExecStreams(t *testing.T) {
	t.Parallel()
	p := execute(t, how{stdin: "one\ntwo\n"}, "sh", "-c", "cat; echo to stderr >&2")
	p.mustSucceed(t, 20*time.Second)
	if got, want := p.stdout.String(), "one\ntwo\n"; got != want {
		t.Errorf("got %q on standard output, want %q", got, want)
	}
	if got, want := p.stderr.String(), "to stderr\n"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q on standard error, want %q first", got, want)
	}
}

func TestExecSignals(t *testing.T) {
	needRoot(t)
	for name, s := range map[string]unix.Signal{"TERM": unix.SIGTERM, "INT": unix.SIGINT, "HUP": unix.SIGHUP, "USR1": unix.SIGUSR1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := execute(t, how{}, "sh", "-c", `trap "echo got `+name+`; exit 5" `+name+`; echo ready; while :; do sleep 0.05; done`)
			waitFor(t, 20*time.Second, "the command to be ready", func() bool {
				return strings.Contains(p.stdout.String(), "ready")
			})
			p.signal(t, s)
			if got := p.wait(t, 20*time.Second); got != 5 {
				t.Errorf("got exit status %d, want 5\n%s", got, p.stderr.String())
			}
			if got, want := p.stdout.String(), "ready\ngot "+name+"\n"; got != want {
				t.Errorf("got %q, want %q: the signal once", got, want)
			}
		})
	}
}

func TestExecUser(t *testing.T) {
	t.Parallel()
	p := execute(t, how{env: []string{"SUDO_UID=65534", "SUDO_GID=65533"}}, "sh", "-c", "id -u; id -g")
	p.mustSucceed(t, 20*time.Second)
	if got, want := p.stdout.String(), "65534\n65533\n"; got != want {
		t.Errorf("got user and group %q, want %q", got, want)
	}
}

func TestExecSummary(t *testing.T) {
	t.Parallel()
	const requests = 5
	o := newOrigin(t)
	file := filepath.Join(shortDir(t), "summary.json")
	g := newGroup(t)
	url := fmt.Sprintf("http://localhost:%d/", o.port)
	// The pace is such that the requests of one process, all but the first
	// two, have to wait, however slow the machine starts processes.
	p := start(t, how{in: g}, here.bin, "exec", "--summary-json", file,
		"--limit", fmt.Sprintf("localhost:%d=1/s,burst=2", o.port), "--",
		"curl", "-sS", "-w", "%{http_code}\n", "-o", "/dev/null", url, "-o", "/dev/null", url, "-o", "/dev/null", url, "-o", "/dev/null", url, "-o", "/dev/null", url)
	p.mustSucceed(t, 30*time.Second)
	if got, want := p.stdout.String(), strings.Repeat("200\n", requests); got != want {
		t.Errorf("got answers %q, want %q", got, want)
	}
	type laneSummary struct {
		Lane           string
		Requests, Held int
		Refused        int
		Limited        int
		LongestWait    float64 `json:"longest_wait_s"`
		MaxInAnySecond int     `json:"max_in_any_second"`
	}
	var s struct {
		Command  []string
		Status   int
		Lanes    []laneSummary
		PassedBy map[string]int `json:"passed_by"`
		Left     int
	}
	if err := json.Unmarshal([]byte(mustRead(t, file)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Command[0] != "curl" || s.Status != 0 || len(s.Lanes) != 1 || len(s.PassedBy) != 0 || s.Left != 0 {
		t.Fatalf("got summary %+v, want one lane and all well", s)
	}
	l := s.Lanes[0]
	want := laneSummary{
		Lane: fmt.Sprintf("localhost:%d/localhost/direct", o.port), Requests: requests, Held: requests - 2,
		LongestWait: l.LongestWait, MaxInAnySecond: l.MaxInAnySecond,
	}
	if l != want {
		t.Errorf("got %+v, want %+v", l, want)
	}
	if l.LongestWait < 0.2 || l.LongestWait > 2 || l.MaxInAnySecond < 2 || l.MaxInAnySecond > 3 {
		t.Errorf("got longest wait %v s and %d in a second, want about 1 s and 2 or 3", l.LongestWait, l.MaxInAnySecond)
	}
	text := p.stderr.String()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "egressd: ") {
			t.Errorf("got line %q, want each to begin with %q", line, "egressd: ")
		}
	}
	if fields := strings.Fields(text); !strings.Contains(text, "REQUESTS") || !strings.Contains(strings.Join(fields, " "), l.Lane+" 5 3 0 0") {
		t.Errorf("got summary\n%s\nwant 5 requests, 3 held, none refused or limited", text)
	}
	if left := g.children(t); len(left) > 0 {
		t.Errorf("egressd exec left cgroups %v", left)
	}
}

// TestExecBackground leaves a process behind: it lives on, the cgroup does
// not.
func TestExecBackground(t *testing.T) {
	t.Parallel()
	p := execute(t, how{}, "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
	p.mustSucceed(t, 20*time.Second)
	pid := number(strings.TrimSpace(p.stdout.String()))
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatalf("the process in the background: got %v, want it alive", err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "/egressd-") {
		t.Errorf("got the process in %s, want it moved out of the cgroup of exec", text)
	}
	if got := p.stderr.String(); !strings.Contains(got, "1 process of sh goes on in the background") {
		t.Errorf("got %q, want a word about what goes on", got)
	}
	// The group of the test, to which it was moved, takes it along.
}
