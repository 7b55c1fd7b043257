// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/test/tlsorigin"
)

// likeness is how a client looks to an origin: each line of it must stay as it
// is, whatever is between the two. Lines of requests are by number.
type likeness struct {
	connections []string // how TLS and HTTP/2 began, each way once
	requests    map[int]string
}

// likenessOf is the likeness of a run.
func likenessOf(t testing.TB, log tlsorigin.Log, c labClient, r labRun) likeness {
	t.Helper()
	l := likeness{requests: map[int]string{}}
	for _, conn := range log.Connections {
		if conn.Version == 0 {
			t.Errorf("connection %d: %s", conn.ID, conn.Err)
			continue
		}
		look := []string{"ja4=" + conn.JA4, "ja4_r=" + conn.JA4R, "sni=" + conn.SNI, "alpn=" + conn.ALPN}
		if !c.shuffle {
			look = append(look, "ja3="+conn.JA3)
		}
		l.connections = append(l.connections, strings.Join(look, " "))
		if conn.HTTP2 != nil { // browsers open connections that they do not use
			l.connections = append(l.connections, "http2="+conn.HTTP2.Fingerprint())
		}
	}
	slices.Sort(l.connections)
	l.connections = slices.Compact(l.connections)
	for i, req := range arrived(t, log, r) {
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n", req.Line)
		for _, f := range req.Fields {
			fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value)
		}
		if p := req.Priority; p != nil {
			// Which stream it depends on is which of them are still open then.
			fmt.Fprintf(&b, "exclusive %v, weight %d\n", p.Exclusive, p.Weight)
		}
		l.requests[i] = b.String()
	}
	return l
}

// mustLook fails the test unless a client looked as it does by itself.
func mustLook(t testing.TB, got, want likeness) {
	t.Helper()
	if !slices.Equal(got.connections, want.connections) {
		t.Errorf("connections look like\n%s\nwant\n%s", strings.Join(got.connections, "\n"), strings.Join(want.connections, "\n"))
	}
	for _, i := range slices.Sorted(maps.Keys(want.requests)) {
		if got.requests[i] != want.requests[i] {
			t.Errorf("request %d looks like\n%s\nwant\n%s", i, got.requests[i], want.requests[i])
		}
	}
}

// newLog is what an origin has seen since it had seen before.
func newLog(o *tlsorigin.Origin, before tlsorigin.Log) tlsorigin.Log {
	log := o.Log()
	return tlsorigin.Log{
		Connections: log.Connections[len(before.Connections):],
		Requests:    log.Requests[len(before.Requests):],
	}
}

// TestHTTPSIdentity runs each client with and without egressd, in front of the
// same origin, which must not see a difference: not in TLS, not in how HTTP/2
// begins, not in a head.
func TestHTTPSIdentity(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, c := range labClients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := labRun{path: "/identity/" + c.name, count: 8, width: 3}
			// Without tickets: which connections resume a session is chance.
			o, port := s.open(t, tlsorigin.Config{NoTickets: true, Pages: run.pages(t)})
			run.port = port
			mustAgree(t, replies(t, s.start(t, how{}, c, run), c, run), arrived(t, o.Log(), run))
			itself := likenessOf(t, o.Log(), c, run)

			for _, mode := range []string{"passthrough", "observe"} {
				before := o.Log()
				// The limit is such that it is met, and egressd's work shows.
				p := s.start(t, how{in: newGroup(t)}, c, run, here.bin, "exec",
					"--limit", fmt.Sprintf("%s:%d=20/s,tls=%s", originHost, port, mode), "--")
				got := replies(t, p, c, run)
				after := newLog(o, before)
				mustAgree(t, got, arrived(t, after, run))
				mustLook(t, likenessOf(t, after, c, run), itself)
				lane := fmt.Sprintf("%s:%d/%s/direct", originHost, port, originHost)
				if said := p.stderr.String(); !strings.Contains(said, lane) {
					t.Errorf("%s: egressd exec said\n%s\nwant lane %s in it: it was passed by", mode, said, lane)
				}
			}
		})
	}
}

// TestHTTPSIdentityShows looks whether likenesses of clients differ at all.
func TestHTTPSIdentityShows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	run := labRun{path: "/shows", count: 2, width: 1}
	o, port := s.open(t, tlsorigin.Config{NoTickets: true})
	run.port = port
	seen := map[string]string{}
	for _, name := range []string{"curl-h1", "curl-h2", "wget", "node-https", "node-fetch", "node-http2", "go-h1", "go-h2"} {
		c := mustLabClient(t, name)
		before := o.Log()
		replies(t, s.start(t, how{}, c, run), c, run)
		l := likenessOf(t, newLog(o, before), c, run)
		kinds := 1
		if c.http2 {
			kinds = 2 // of TLS and of HTTP/2
		}
		if len(l.connections) != kinds || len(l.requests) != run.count {
			t.Fatalf("%s: got likeness %+v, want one kind of connection", name, l)
		}
		look := strings.Join(l.connections, "\n") + "\n" + l.requests[0]
		if other := seen[look]; other != "" {
			t.Errorf("%s looks like %s:\n%s", name, other, look)
		}
		seen[look] = name
	}
}
