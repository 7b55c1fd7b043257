// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/diagnose"
)

// TestDiagnose holds what diagnose says of real processes, each story with a
// cause of its own.
func TestDiagnose(t *testing.T) {
	const watch = 5 * time.Second
	loop := func(l *live, port, count int, pause string) {
		l.run("egressd", "demo-clients", "--count", fmt.Sprint(count), "--pause", pause, "--for", "1m", fmt.Sprintf("http://127.0.0.1:%d/", port))
	}
	for _, tt := range []struct {
		name   string
		origin *slowOrigin
		start  func(*httptest.Server)
		budget string // after the match
		load   func(l *live, port int)
		want   []diagnose.Kind
		says   string // in the text for people
	}{
		{
			name:   "four workers, each within the limit",
			origin: &slowOrigin{wait: 150 * time.Millisecond, limit: 2},
			budget: "rate: 2/s, mode: shadow",
			load: func(l *live, port int) {
				for range 4 {
					loop(l, port, 1, "700ms")
				}
			},
			want: []diagnose.Kind{diagnose.Multiplication},
			says: "4 processes sent ",
		},
		{
			name:   "a budget above what the origin allows",
			origin: &slowOrigin{wait: 20 * time.Millisecond, limit: 2},
			budget: "rate: 20/s, cooldown: {default: 200ms}",
			load:   func(l *live, port int) { loop(l, port, 4, "0s") },
			want:   []diagnose.Kind{diagnose.WrongLimit},
			says:   "the budget (20/s) is kept, and the origin limits nevertheless",
		},
		{
			name:   "refused, and back at once",
			origin: &slowOrigin{wait: 5 * time.Millisecond},
			budget: "rate: 2/s, queue: {max_wait: 100ms}",
			load:   func(l *live, port int) { loop(l, port, 4, "50ms") },
			want:   []diagnose.Kind{diagnose.OwnRefusals, diagnose.RetryStorm},
			says:   "clients answer refusals with more requests",
		},
		{
			name:   "a source port of the client's own",
			origin: &slowOrigin{},
			budget: "rate: 10/s",
			load: func(l *live, port int) {
				needs(l.t, "curl")
				for range 3 {
					if err := l.run("curl", "-s", "--local-port", "20000-60000", fmt.Sprintf("http://127.0.0.1:%d/", port)).Wait(); err != nil {
						l.t.Fatalf("curl: %v", err)
					}
				}
			},
			want: []diagnose.Kind{diagnose.PastEgressd},
			says: "3 connections that the policy names went untouched since the daemon started, 0 of them while watched: 3 by gate source_port",
		},
		{
			name:   "TLS that nobody reads",
			origin: &slowOrigin{wait: time.Minute},
			start:  (*httptest.Server).StartTLS,
			budget: "rate: 10/s",
			load: func(l *live, port int) {
				needs(l.t, "curl")
				l.run("curl", "-sk", fmt.Sprintf("https://127.0.0.1:%d/", port))
			},
			want: []diagnose.Kind{diagnose.BlindTLS},
			says: "who    curl (pid ",
		},
		{
			name:   "nothing wrong",
			origin: &slowOrigin{wait: 20 * time.Millisecond},
			budget: "rate: 5/s",
			load: func(l *live, port int) {
				for range 3 {
					loop(l, port, 1, "300ms")
				}
			},
			says: "Nothing found: no origin limited anything that was seen, and nothing went past egressd.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.start == nil {
				tt.start = (*httptest.Server).Start
			}
			port := tt.origin.serve(t, tt.start)
			l := newLive(t, fmt.Sprintf("  - {name: store, match: {hosts: [127.0.0.1], ports: [%d]}, %s}", port, tt.budget))
			tt.load(l, port)
			time.Sleep(time.Second)
			var r diagnose.Report
			if err := json.Unmarshal([]byte(l.ask("diagnose", "--json", "--for", watch.String())), &r); err != nil {
				t.Fatal(err)
			}
			var got []diagnose.Kind
			for _, f := range r.Findings {
				got = append(got, f.Kind)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v: %+v", got, tt.want, r)
			}
			if r.Watched < watch.Seconds()*0.9 {
				t.Errorf("got a watch of %v s, want %v", r.Watched, watch)
			}
			var text strings.Builder
			if err := r.Write(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), tt.says) {
				t.Errorf("got\n%s\nwant it to say %q", text.String(), tt.says)
			}
		})
	}
}

// needs skips a story whose client is not installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s", program)
	}
}

// TestDiagnoseInTime holds that Ctrl-C ends the watch, not the diagnosis.
func TestDiagnoseInTime(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "admin.sock")
	serveCounting(t, socket)
	p := newPTY(t, 80, 24)
	p.start("egressd", "diagnose", "--for", "1h", "--socket", socket)
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.written(), "watching for 1h0m0s"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %q, want it to watch", p.written())
		}
	}
	p.send("\x03")
	if err := p.wait(); err != nil {
		t.Errorf("got %v, want status 0", err)
	}
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.written(), "1. wrong limit: "); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %q, want what was found", p.written())
		}
	}
}
