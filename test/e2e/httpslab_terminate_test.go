// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/test/tlsorigin"
)

// difference says in what a client looks different where its TLS ends at
// egressd.
type difference struct {
	client          string
	hello, h2, head string // same, or how it differs
}

// TestHTTPSTerminate has TLS of each client end at egressd, by consent of a
// budget: requests wait for their turn, what the origin limits is seen, and the
// origin sees the client's own hello and the client's own HTTP. What is
// different is shown, and must be nothing.
func TestHTTPSTerminate(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	scope := newGroup(t)
	ca := filepath.Join(shortDir(t), "ca")
	must(t, here.bin, "ca", "init", "--dir", ca)
	// The clients trust the origin, for when they are by themselves, and the
	// host's authority.
	roots := s.trust + ".origin"
	mustWrite(t, roots, mustRead(t, s.trust))
	mustWrite(t, s.trust, mustRead(t, roots)+mustRead(t, filepath.Join(ca, "ca.pem")))

	type part struct {
		labClient
		labRun
		origin *tlsorigin.Origin
		alone  likeness
	}
	var parts []*part
	var budgets strings.Builder
	for _, c := range labClients {
		if c.name == "chromium" {
			continue // it trusts a certificate by its key, not an authority
		}
		p := &part{labClient: c, labRun: labRun{path: "/terminate/" + c.name, count: 12, width: 4}}
		p.origin, p.port = s.open(t, tlsorigin.Config{
			NoTickets: true, Pages: p.pages(t),
			Forced: []tlsorigin.Forced{{Path: p.path + "/5", Status: 429, RetryAfter: "1"}},
		})
		fmt.Fprintf(&budgets, "  - {name: %s, match: {hosts: [%s], ports: [%d]}, rate: %d/s, queue: {max_wait: 60s}}\n",
			strings.ReplaceAll(c.name, ".", "-"), originHost, p.port, sightRate)
		parts = append(parts, p)
	}
	d := prepareDaemon(t, scope)
	d.within = s.within()
	d.extra += fmt.Sprintf("tls: {mode: terminate, sources: [uprobes], ca: %s, roots: %s}\n", ca, roots)
	d.write(t, budgets.String())
	d.start(t)
	log := d.follow(t)

	var mu sync.Mutex
	var rows []difference
	t.Run("clients", func(t *testing.T) {
		for _, p := range parts {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				replies(t, s.start(t, how{}, p.labClient, p.labRun), p.labClient, p.labRun)
				p.alone = likenessOf(t, p.origin.Log(), p.labClient, p.labRun)

				before := p.origin.Log()
				got := replies(t, s.start(t, how{in: scope}, p.labClient, p.labRun), p.labClient, p.labRun)
				after := newLog(p.origin, before)
				sent := arrived(t, after, p.labRun)
				mustAgree(t, got, sent)
				lane := fmt.Sprintf("%s/%s/direct", strings.ReplaceAll(p.name, ".", "-"), originHost)
				at := letGo(t, log, lane)
				if len(at) != p.count {
					t.Errorf("got %d dispatches of %d requests", len(at), p.count)
				}
				for i := 1; i < len(at); i++ {
					if apart := time.Duration(at[i] - at[i-1]); apart < time.Second/sightRate {
						t.Errorf("dispatches %v apart, want at most %d a second", apart, sightRate)
					}
				}
				row := differences(likenessOf(t, after, p.labClient, p.labRun), p.alone)
				row.client = p.name
				if row.hello != "same" || row.h2 != "same" || row.head != "same" {
					t.Errorf("the origin saw a difference: %+v", row)
				}
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, row)
			})
		}
	})
	if got := lanesClosed(t, log); got < len(parts) {
		t.Errorf("%d lanes were closed by a 429 inside TLS, want %d", got, len(parts))
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "client\thello\thttp/2\theads")
	slices.SortFunc(rows, func(a, b difference) int { return strings.Compare(a.client, b.client) })
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.client, r.hello, r.h2, r.head)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("differences at the origin:\n%s", text.String())
}

// differences compares how a client looks with how it looks by itself.
func differences(got, want likeness) (d difference) {
	d.hello, d.h2, d.head = "same", "same", "same"
	of := func(l likeness, http2 bool) (lines []string) {
		for _, line := range l.connections {
			if strings.HasPrefix(line, "http2=") == http2 {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if a, b := of(got, false), of(want, false); !slices.Equal(a, b) {
		d.hello = fmt.Sprintf("%q, by itself %q", a, b)
	}
	if a, b := of(got, true), of(want, true); !slices.Equal(a, b) {
		d.h2 = fmt.Sprintf("%q, by itself %q", a, b)
	}
	for i, head := range want.requests {
		if got.requests[i] != head {
			d.head = fmt.Sprintf("request %d: %q, by itself %q", i, got.requests[i], head)
		}
	}
	return d
}

// lanesClosed is how many lanes a limit has closed so far.
func lanesClosed(t testing.TB, log *process) int {
	t.Helper()
	closed := map[string]bool{}
	for _, ev := range events(t, log) {
		if ev.Kind == "penalty" {
			closed[ev.Lane] = true
		}
	}
	return len(closed)
}

// must runs a command that has to succeed.
func must(t testing.TB, args ...string) {
	t.Helper()
	p := start(t, how{}, args...)
	if status := p.wait(t, 20*time.Second); status != 0 {
		t.Fatalf("%s: exit status %d\n%s%s", strings.Join(args, " "), status, p.stdout.String(), p.stderr.String())
	}
}
