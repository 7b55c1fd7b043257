// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is an `egressd run` of one test.
type daemon struct {
	*process
	scope  *group
	dir    string
	config string
	socket string
	pins   string
	extra  string   // what the policy file says besides the budgets
	within []string // the command that runs the daemon somewhere else, and its arguments
}

// newDaemon writes a policy file for scope, with sockets and pins of its own,
// and starts the daemon. budgets is YAML from the first "- name" on, indented
// by two. It returns when the daemon says that it is ready.
func newDaemon(t testing.TB, scope *group, budgets string) *daemon {
	t.Helper()
	d := prepareDaemon(t, scope)
	d.write(t, budgets)
	d.start(t)
	return d
}

// prepareDaemon makes the folders of a daemon.
func prepareDaemon(t testing.TB, scope *group) *daemon {
	t.Helper()
	d := &daemon{scope: scope, dir: shortDir(t)}
	d.config = filepath.Join(d.dir, "egressd.yml")
	d.socket = filepath.Join(d.dir, "admin.sock")
	d.pins = filepath.Join(here.pins, filepath.Base(d.dir))
	t.Cleanup(func() {
		if err := os.RemoveAll(d.pins); err != nil {
			t.Errorf("remove pins: %v", err)
		}
	})
	return d
}

// shortDir makes a folder for the test: testing's own have names that are too
// long for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(here.dir, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write writes the policy file.
func (d *daemon) write(t testing.TB, budgets string) {
	t.Helper()
	text := fmt.Sprintf("scope: {cgroups: [%s]}\nmetrics: {listen: \"127.0.0.1:0\"}\nadmin: {socket: %s}\n%sbudgets:\n%s\n",
		d.scope.path, d.socket, d.extra, budgets)
	mustWrite(t, d.config, text)
}

func mustWrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// start runs the daemon and waits for READY=1, as a service manager does.
func (d *daemon) start(t testing.TB) {
	t.Helper()
	path := filepath.Join(d.dir, fmt.Sprintf("notify%d.sock", groups.Add(1)))
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close() })
	d.process = start(t, how{env: []string{"NOTIFY_SOCKET=" + path}}, append(slices.Clone(d.within),
		here.bin, "run", "--config", d.config, "--pin-dir", d.pins, "--log-level", "debug")...)
	t.Cleanup(func() { d.finish(t) })
	text := make([]byte, 4096)
	for end := time.Now().Add(30 * time.Second); ; {
		if err := notify.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := notify.Read(text)
		switch {
		case err == nil && strings.Contains(string(text[:n]), "READY=1"):
			return
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatal(err)
		case !d.running():
			t.Fatalf("egressd run ended before it was ready, status %d\n%s", d.wait(t, 0), d.stderr.String())
		case time.Now().After(end):
			t.Fatalf("egressd run is not ready after 30 s\n%s", d.stderr.String())
		}
	}
}

// finish stops the daemon at the end of a test, with the same demands as
// stop, and shows its log if the test failed.
func (d *daemon) finish(t testing.TB) {
	t.Helper()
	if d.running() {
		d.stop(t)
	}
	if t.Failed() {
		t.Logf("egressd run %s:\n%s", d.config, d.stderr.String())
	}
}

// stop ends the daemon by SIGTERM: it must end well and leave nothing but the
// pinned ledger.
func (d *daemon) stop(t testing.TB) {
	t.Helper()
	d.signal(t, unix.SIGTERM)
	if status := d.wait(t, 20*time.Second); status != 0 {
		t.Errorf("egressd run after SIGTERM: got exit status %d, want 0\n%s", status, d.stderr.String())
	}
	mustBeClean(t, d.scope)
	mustOnlyLedger(t, d)
	if _, err := os.Lstat(d.socket); err == nil {
		t.Errorf("admin socket %s was left behind", d.socket)
	}
}

// ask runs a command that talks to the daemon and returns what it prints.
func (d *daemon) ask(t testing.TB, args ...string) string {
	t.Helper()
	return mustRun(t, here.bin, append(args, "--socket", d.socket)...)
}

// askJSON reads what a command of the daemon prints with --json.
func (d *daemon) askJSON(t testing.TB, into any, args ...string) {
	t.Helper()
	text := d.ask(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("egressd %v: %v in\n%s", args, err, text)
	}
}

// status is what tests want to know from `egressd status --json`.
type status struct {
	Config struct {
		OK    bool
		Error string
	}
	Kernel struct {
		Attached  bool
		Canary    struct{ OK bool }
		Untouched map[string]int
	}
	Flows   int
	Waiting int
	Metrics string
}

func (d *daemon) status(t testing.TB) (s status) {
	t.Helper()
	d.askJSON(t, &s, "status")
	return s
}

// lane is what tests want to know from `egressd lanes --json`.
type lane struct {
	Lane                   string
	Rate, Base             float64
	Granted, Held, Refused int
	Limited, Waiting       int
	Open                   bool
	ClosedFor              float64 `json:"closed_for_s"`
}

// lane returns the only lane that there is.
func (d *daemon) lane(t testing.TB) lane {
	t.Helper()
	var all []lane
	d.askJSON(t, &all, "lanes")
	if len(all) != 1 {
		t.Fatalf("got lanes %+v, want one", all)
	}
	return all[0]
}

// metrics scrapes the daemon.
func (d *daemon) metrics(t testing.TB) string {
	t.Helper()
	resp, err := http.Get("http://" + d.status(t).Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("scrape: got %s\n%s", resp.Status, text)
	}
	return string(text)
}

// event is one line of `egressd events --json`.
type event struct {
	Mono   int64 `json:"mono_ns"`
	Kind   string
	Lane   string
	Wait   float64 `json:"wait_s"`
	Detail string
}

// follow begins to follow the daemon's events, dispatches too. When it
// returns, nothing that happens later is missed.
func (d *daemon) follow(t testing.TB) *process {
	t.Helper()
	p := start(t, how{}, here.bin, "events", "--follow", "--dispatches", "--json", "--socket", d.socket)
	// A reload is an event that can be ordered.
	d.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the events to flow", func() bool {
		return strings.Contains(p.stdout.String(), `"reload"`)
	})
	return p
}

// events parses what a process from follow has printed.
func events(t testing.TB, p *process) (all []event) {
	t.Helper()
	text := p.stdout.String()
	for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) {
		var ev event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("events: %v in %s", err, line)
		}
		if ev.Kind == "lost" {
			t.Fatalf("events: some were lost: %s", ev.Detail)
		}
		all = append(all, ev)
	}
	return all
}
