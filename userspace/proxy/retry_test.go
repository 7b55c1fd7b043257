// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/mono"
)

// exchange is a request that a scripted origin expects, and what it does then.
type exchange struct {
	request string
	early   int // bytes of request after which it answers; 0: all
	answer  string
	end     deed // doClose or doReset after that; else the connection goes on
}

// scripted is an origin that plays exchanges in order, over whatever
// connections they come.
type scripted struct {
	t     testing.TB
	dest  netip.AddrPort
	mu    sync.Mutex
	rest  []exchange
	conns int
}

func newScripted(t testing.TB, script ...exchange) *scripted {
	s := &scripted{t: t, rest: script}
	s.dest = origin(t, s.serve)
	return s
}

func (s *scripted) serve(c *net.TCPConn) {
	first := make([]byte, 1)
	for n := 0; ; n++ {
		if m, _ := c.Read(first); m == 0 {
			return
		}
		s.mu.Lock()
		if n == 0 {
			s.conns++
		}
		if len(s.rest) == 0 {
			s.mu.Unlock()
			s.t.Errorf("the origin got one request too many, which begins with %q", first)
			return
		}
		e := s.rest[0]
		s.rest = s.rest[1:]
		s.mu.Unlock()
		if e.request[0] != first[0] {
			s.t.Errorf("the origin got a request that begins with %q, want %.20q", first, e.request)
			return
		}
		early := e.early
		if early == 0 {
			early = len(e.request)
		}
		mustRead(s.t, c, e.request[1:early])
		mustWrite(s.t, c, e.answer)
		if e.end == doReset {
			c.SetLinger(0)
			return
		}
		if e.end == doClose {
			return
		}
		mustRead(s.t, c, e.request[early:])
	}
}

// played says that everything in the script happened, over so many connections
// if that is not 0.
func (s *scripted) played(conns int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rest) > 0 {
		s.t.Errorf("the origin waits for %.60q", s.rest[0].request)
	}
	if conns > 0 && s.conns != conns {
		s.t.Errorf("the origin saw %d connections, want %d", s.conns, conns)
	}
}

// absorbing is a rule that repeats what it may.
func absorbing() *policy.Budget {
	rule := budget("origin.test", plenty)
	rule.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 1000, Statuses: []int{503}}
	return rule
}

// limited is a 429, with fields of its own, that asks for a short wait.
func limited(body string, fields ...string) string {
	return fmt.Sprintf("HTTP/1.1 429 Too Many\r\nretry-after-MS:  5\r\n%sContent-Length: %d\r\n\r\n%s", strings.Join(fields, ""), len(body), body)
}

// next follows each case on the same connection, to see that all is in order.
const next = "OPTIONS * HTTP/1.1\r\nHost: origin.test\r\n\r\n"

// TestRetries plays what an origin says to a request and its repetitions. The
// client must get exactly what is wanted, and then the answer to another
// request: one that was sent together with the first, and one that was not.
func TestRetries(t *testing.T) {
	const (
		head    = "HEAD /x HTTP/1.1\r\nHost: origin.test\r\n\r\n"
		put     = "PUT /x HTTP/1.1\r\nhost:origin.test\r\nContent-Length: 11\r\n\r\nhello\r\n\r\n\x00\xff"
		chunked = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n005;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
		post    = "POST /x HTTP/1.1\r\nHost: origin.test\r\n%sContent-Length: 2\r\n\r\nhi"
		busy    = "HTTP/1.1 503 Busy\r\nRetry-After-Ms: 5\r\nContent-Length: 0\r\n\r\n"
		headers = "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\nContent-Length: 1234\r\n\r\n"
		early   = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
	)
	keyed := fmt.Sprintf(post, "idempotency-KEY: \"a\"\r\n")
	long := strings.Repeat("0123456789abcdef", 10<<10/16)
	type try = exchange
	for _, tc := range []struct {
		name    string
		request string
		tries   []try // whose request is that one if they name none
		want    string
		conns   int
		ends    bool // the connection does, after that
		void    int  // tries of which the origin said nothing, on a connection that stood
		rule    func(*policy.Budget)
	}{
		{name: "answered at last", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "never answered", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")}, {answer: limited("3", "X-a: b\r\nx-A:\tc \r\n")}}, want: limited("3", "X-a: b\r\nx-A:\tc \r\n"), conns: 1},
		{name: "another answer", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: "HTTP/1.1 404 Gone\r\nContent-Length: 1\r\n\r\nx"}}, want: "HTTP/1.1 404 Gone\r\nContent-Length: 1\r\n\r\nx", conns: 1},
		{name: "HEAD", request: head, tries: []try{{answer: headers}, {answer: headers}, {answer: headers}}, want: headers, conns: 1},
		{name: "HEAD, answered", request: head, tries: []try{{answer: headers}, {answer: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"}}, want: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", conns: 1},
		{name: "PUT", request: put, tries: []try{{answer: limited("1")}, {answer: limited("2")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "chunked", request: chunked, tries: []try{{answer: limited("1")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "empty lines before the request", request: "\r\n" + simpleGet, tries: []try{{answer: limited("1")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "POST", request: fmt.Sprintf(post, ""), tries: []try{{answer: limited("1")}}, want: limited("1")},
		{name: "POST with a key", request: keyed, tries: []try{{answer: limited("1")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "POST with an empty key", request: fmt.Sprintf(post, "Idempotency-Key: \r\n"), tries: []try{{answer: limited("1")}}, want: limited("1")},
		{name: "methods have case", request: strings.Replace(simpleGet, "GET", "get", 1), tries: []try{{answer: limited("1")}}, want: limited("1")},
		{name: "503", request: simpleGet, tries: []try{{answer: busy}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "503 is not among the statuses", request: simpleGet, tries: []try{{answer: busy}}, want: busy, rule: func(r *policy.Budget) { r.Retry.Statuses = nil }},
		{name: "502 is", request: simpleGet, tries: []try{{answer: "HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n"}, {answer: shortAnswer}}, want: shortAnswer, conns: 1,
			rule: func(r *policy.Budget) { r.Retry.Statuses = []int{502, 504} }},
		{name: "another status is a limit", request: simpleGet, tries: []try{{answer: strings.Replace(limited("1"), "429", "420", 1)}, {answer: limited("2")}}, want: limited("2"),
			rule: func(r *policy.Budget) { r.Cooldown.Statuses = []int{420} }},
		{name: "x-should-retry", request: simpleGet, tries: []try{{answer: limited("1", "X-Should-Retry: true\r\n")}, {answer: limited("2", "x-SHOULD-retry:  False \r\n")}}, want: limited("2", "x-SHOULD-retry:  False \r\n")},
		{name: "Stripe-Should-Retry", request: simpleGet, tries: []try{{answer: limited("1", "Stripe-Should-Retry: false\r\n")}}, want: limited("1", "Stripe-Should-Retry: false\r\n")},
		{name: "challenge", request: simpleGet, tries: []try{{answer: limited("1", "cf-mitigated: challenge\r\n")}}, want: limited("1", "cf-mitigated: challenge\r\n")},
		{name: "not asked to", request: simpleGet, tries: []try{{answer: limited("1")}}, want: limited("1"), rule: func(r *policy.Budget) { r.Retry.Absorb = false }},
		{name: "not enforced", request: simpleGet, tries: []try{{answer: limited("1")}}, want: limited("1"), rule: func(r *policy.Budget) { r.Mode = policy.Shadow }},

		{name: "body of the largest size", request: "PUT / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1000\r\n\r\n" + long[:1000], tries: []try{{answer: limited("1")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "body too large", request: "PUT / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1001\r\n\r\n" + long[:1001], tries: []try{{answer: limited("1")}}, want: limited("1")},
		{name: "chunks too large", request: "PUT / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + long[:1000] + "\r\n0\r\n\r\n", tries: []try{{answer: limited("1")}}, want: limited("1")},
		{name: "large body", request: fmt.Sprintf("PUT / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: %d\r\n\r\n%s", 100*len(long), strings.Repeat(long, 100)),
			tries: []try{{answer: limited("1")}, {answer: shortAnswer}}, want: shortAnswer, conns: 1, rule: func(r *policy.Budget) { r.Retry.MaxBody = 2 << 20 }},

		{name: "large answer", request: simpleGet, tries: []try{{answer: limited(strings.Repeat(long, 6))}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "large answer, owed", request: simpleGet, tries: []try{{answer: limited(strings.Repeat(long, 6))}, {answer: early, end: doClose}}, want: early + limited(strings.Repeat(long, 6)), conns: 2},
		{name: "answer too large", request: simpleGet, tries: []try{{answer: limited(strings.Repeat(long, 7))}}, want: limited(strings.Repeat(long, 7))},
		{name: "answer of any size", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited(strings.Repeat(long, 100))}}, want: limited(strings.Repeat(long, 100))},
		{name: "chunked answer", request: simpleGet, tries: []try{{answer: "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"}, {answer: shortAnswer}}, want: shortAnswer, conns: 1},
		{name: "answer with bad chunks", request: simpleGet, tries: []try{{answer: "HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd", end: doClose}}, want: "HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd", ends: true},
		{name: "answer until close", request: simpleGet, tries: []try{{answer: "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\n\r\nall of it", end: doClose}, {answer: shortAnswer}}, want: shortAnswer, conns: 2},
		{name: "answer until close, owed", request: simpleGet, tries: []try{{answer: "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\n\r\nall of it", end: doClose}, {answer: "H", end: doClose}}, want: "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\n\r\nall of it", ends: true},
		{name: "answer cut short", request: simpleGet, tries: []try{{answer: limited("12345")[:len(limited("12345"))-2], end: doClose}}, want: limited("12345")[:len(limited("12345"))-2], ends: true},
		{name: "second answer cut short", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")[:len(limited("2"))-1], end: doClose}}, want: limited("1"), conns: 2},
		{name: "second answer reset", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")[:len(limited("2"))-1], end: doReset}}, want: limited("1"), conns: 2},
		{name: "interim answers are passed on", request: simpleGet, tries: []try{{answer: early + limited("1")}, {answer: early + early + shortAnswer}}, want: early + early + early + shortAnswer, conns: 1},
		{name: "no content", request: simpleGet, tries: []try{{answer: "HTTP/1.1 429 No\r\nRetry-After-Ms: 5\r\nContent-Length: 0\r\n\r\n"}, {answer: "HTTP/1.1 204 No\r\n\r\n"}}, want: "HTTP/1.1 204 No\r\n\r\n", conns: 1},

		{name: "origin closes", request: put, tries: []try{{answer: limited("1", "Connection: close\r\n"), end: doClose}, {answer: limited("2"), end: doClose}, {answer: shortAnswer}}, want: shortAnswer, conns: 3},
		{name: "origin says it closes", request: simpleGet, tries: []try{{answer: limited("1", "Connection: close\r\n")}, {answer: shortAnswer}}, want: shortAnswer, conns: 2},
		{name: "origin resets after its answer", request: simpleGet, tries: []try{{answer: limited("1"), end: doReset}, {answer: shortAnswer}}, want: shortAnswer},
		{name: "closing answer, owed", request: simpleGet, tries: []try{{answer: limited("1", "Connection: close\r\n"), end: doClose}, {end: doClose}}, want: limited("1", "Connection: close\r\n"), ends: true},
		{name: "origin gone", request: put, tries: []try{{answer: limited("1")}, {end: doClose}, {end: doClose}}, want: limited("1"), conns: 3, void: 1},
		{name: "connection gone", request: put, tries: []try{{answer: limited("1")}, {end: doClose}, {answer: limited("2")}, {end: doReset}, {answer: limited("3")}}, want: limited("3"), conns: 3, void: 2},
		{name: "origin gone in the head", request: put, tries: []try{{answer: limited("1")}, {answer: "HTTP/1.1 200 OK\r\nConte", end: doClose}}, want: limited("1"), conns: 2},
		{name: "origin gone after an interim answer", request: put, tries: []try{{answer: limited("1")}, {answer: early + "HTTP", end: doClose}}, want: early + limited("1"), conns: 2},
		{name: "origin resets", request: put, tries: []try{{answer: limited("1")}, {end: doReset}, {end: doReset}}, want: limited("1"), conns: 3, void: 1},
		{name: "origin speaks no HTTP", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: "garbage\r\n\r\n", end: doClose}}, want: limited("1"), conns: 2},
		{name: "more than an answer", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2") + shortAnswer, end: doClose}}, want: limited("2") + shortAnswer, ends: true},

		{name: "early answer", request: put, tries: []try{{answer: limited("1"), early: len(put) - 5}, {answer: shortAnswer}}, want: shortAnswer},
		{name: "early answer and close", request: put, tries: []try{{answer: limited("1", "Connection: close\r\n"), early: len(put) - 5, end: doClose}, {answer: shortAnswer}}, want: shortAnswer, conns: 2},
		{name: "early second answer", request: put, tries: []try{{answer: limited("1")}, {answer: limited("2"), early: 20}, {answer: shortAnswer}}, want: shortAnswer},
		{name: "early last answer", request: put, tries: []try{{answer: limited("1")}, {answer: shortAnswer, early: 20}}, want: shortAnswer, conns: 1},

		{name: "would wait too long", request: simpleGet, tries: []try{{answer: strings.Replace(limited("1"), "5", "50000", 1)}}, want: strings.Replace(limited("1"), "5", "50000", 1),
			rule: func(r *policy.Budget) { r.Match.Path = "/"; r.Queue.MaxWait = time.Second }},
		{name: "has waited too long", request: simpleGet, tries: []try{{answer: strings.Replace(limited("1"), "5", "600", 1)}, {answer: strings.Replace(limited("2"), "5", "600", 1)}}, want: strings.Replace(limited("2"), "5", "600", 1),
			rule: func(r *policy.Budget) { r.Match.Path = "/"; r.Queue.MaxWait = time.Second }},
		{name: "too many retries", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")}, {answer: limited("3")}, {answer: limited("4")}}, want: limited("4"), conns: 1,
			rule: func(r *policy.Budget) { r.Retry.Attempts = 10 }},
		{name: "connections are counted", request: simpleGet, tries: []try{{answer: limited("1")}, {answer: limited("2")}, {answer: shortAnswer}}, want: shortAnswer, conns: 3,
			rule: func(r *policy.Budget) { r.Unit, r.Concurrency = policy.Connections, 1 }},
	} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, together %v", tc.name, together), func(t *testing.T) {
				t.Parallel()
				rule := absorbing()
				if tc.rule != nil {
					tc.rule(rule)
				}
				var script []exchange
				for _, e := range tc.tries {
					if e.request == "" {
						e.request = tc.request
					}
					script = append(script, e)
				}
				if !tc.ends {
					script = append(script, exchange{request: next, answer: shortAnswer})
				}
				o := newScripted(t, script...)
				b := start(t, rule)
				client := b.connect(o.dest)
				if together && !tc.ends {
					go client.Write([]byte(tc.request + next)) // more than fits may be answered while it is written
				} else {
					go client.Write([]byte(tc.request))
				}
				mustRead(t, client, tc.want)
				if tc.ends {
					mustEnd(t, client, false)
				} else {
					if !together {
						mustWrite(t, client, next)
					}
					mustRead(t, client, shortAnswer)
				}
				o.played(tc.conns)
				client.Close()
				b.nothingKept()
				lane := b.engine.Lanes()[0]
				if got, want := lane.Tally.Retried(), uint64(len(tc.tries)-1-tc.void); got != want {
					t.Errorf("%d retries are counted, want %d", got, want)
				}
				if got := lane.Tally.Refused(policy.RefusedMaxWait); got != 0 {
					t.Errorf("%d refusals are counted, want none: the client saw none", got)
				}
			})
		}
	}
}

// TestRetriesAtRandom has requests of all kinds refused in all kinds of ways,
// and compares with what a client would see that were told only of the end.
func TestRetriesAtRandom(t *testing.T) {
	const stories, actors = 160, 8
	for k := range uint64(actors) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			for seed := k; seed < stories && !t.Failed(); seed += actors {
				tellRetries(t, seed)
			}
		})
	}
}

func tellRetries(t *testing.T, seed uint64) {
	s := &script{rnd: rand.New(rand.NewPCG(seed, 3))}
	head, body := s.request()
	request := head + body
	repeated := !strings.Contains(head, "POST")
	var play []exchange
	var want, owed string
	ends, retries := false, 0
	for done := false; !done; {
		interim := s.one("", "", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
		status, closes := s.one("429", "429", "503", "200", "404"), s.rnd.IntN(4) == 0
		framing, content := s.body()
		switch {
		case framing == "\r\n" && s.rnd.IntN(3) == 0:
			content, closes = "until the end", true
		case framing == "\r\n":
			framing = "Content-Length: 0\r\n\r\n"
		}
		if strings.Contains(head, "HEAD ") {
			content = ""
		}
		closing := "" // by which the origin says that it closes
		if closes && s.rnd.IntN(2) == 0 {
			closing = "Connection: close\r\n"
		}
		answer := "HTTP/1.1 " + status + " x\r\nRetry-After-Ms: 1\r\n" + closing + s.filler() + framing + content
		refuses := repeated && (status == "429" || status == "503") && len(answer) <= maxAnswer && retries < 2
		ends = closes
		how := doSend
		if closes {
			how = doClose
		}
		switch {
		case owed != "" && s.rnd.IntN(4) == 0: // the origin is gone before its answer is whole
			cut := 1 + s.rnd.IntN(strings.Index(answer, "\r\n\r\n"))
			answer, how = answer[:cut], s.way(doClose, doReset)
			if how == doReset {
				interim = "" // which might be lost
			}
			want += interim + owed
			ends, done = strings.Contains(owed, "Connection: close") || strings.HasSuffix(owed, "until the end"), true
		case refuses:
			want += interim
			owed = answer
			retries++
		default:
			want += interim + answer
			done = true
		}
		play = append(play, exchange{request: request, answer: interim + answer, end: how})
	}
	if !ends {
		play = append(play, exchange{request: next, answer: shortAnswer})
	}
	rule := absorbing()
	rule.Retry.MaxBody = 4 << 20
	o := newScripted(t, play...)
	b := start(t, rule)
	client := b.connect(o.dest)
	go client.Write([]byte(request))
	mustRead(t, client, want)
	if ends {
		mustEnd(t, client, false)
	} else {
		mustWrite(t, client, next)
		mustRead(t, client, shortAnswer)
	}
	client.Close()
	o.played(0)
	b.nothingKept()
	b.stop()
	if t.Failed() {
		t.Logf("seed %d: %.60q", seed, request)
		for _, e := range play {
			t.Logf("  %d bytes %.150q, %s", len(e.answer), e.answer, deedNames[e.end])
		}
	}
}

// nothingKept waits until every connection has ended, and sees that nothing is
// left of requests.
func (b *bench) nothingKept() {
	b.t.Helper()
	waitFor(b.t, "no connections", func() bool { return len(b.Flows()) == 0 })
	if got := b.kept.Load(); got != 0 {
		b.t.Errorf("%d bytes are kept, want none", got)
	}
	for _, l := range b.engine.Lanes() {
		if in, waiting := l.InFlight.Load(), l.Waiting.Load(); in != 0 || waiting != 0 {
			b.t.Errorf("lane %s: %d in flight, %d waiting; want none", l.ID(), in, waiting)
		}
	}
}

// slow is limited with a long wait.
func slow() string { return strings.Replace(limited("slow"), "5", "3600000", 1) }

// patient is a rule under which a repetition after slow is held for long.
func patient() *policy.Budget {
	rule := absorbing()
	rule.Queue.MaxWait = 24 * time.Hour
	return rule
}

// waiting waits until a repetition is held.
func (b *bench) waiting() {
	b.t.Helper()
	waitFor(b.t, "repetition held", func() bool {
		lanes := b.engine.Lanes()
		return len(lanes) > 0 && lanes[0].Waiting.Load() == 1
	})
}

// A client that leaves while its request waits to be repeated costs nothing
// more, however it leaves.
func TestRetryClientLeaves(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close":                func(c *net.TCPConn) { c.Close() },
		"reset":                func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half-close and close": func(c *net.TCPConn) { c.CloseWrite(); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			o := newScripted(t, exchange{request: simpleGet, answer: slow()})
			b := start(t, patient())
			client := b.connect(o.dest)
			mustWrite(t, client, simpleGet)
			b.waiting()
			leave(client)
			waitFor(t, "client gone", func() bool {
				b.ring()
				return len(b.Flows()) == 0
			})
			b.nothingKept()
			o.played(1)
			lane := b.engine.Lanes()[0]
			if got := lane.Cell.Granted.Load(); got != 1 {
				t.Errorf("%d were granted, want 1", got)
			}
			for range 3 { // what was taken for the repetition is there again
				if !lane.Retries.Withdraw() {
					t.Error("the lane has fewer retries than it began with")
				}
			}
		})
	}
}

// A client that ended its sending with the request gets the answer to the
// repetition, and each connection of the origin sees the end.
func TestRetryHalfClosedClient(t *testing.T) {
	o := newScripted(t,
		exchange{request: simpleGet, answer: limited("1")},
		exchange{request: simpleGet, answer: limited("2"), end: doClose},
		exchange{request: simpleGet, answer: shortAnswer})
	b := start(t, absorbing())
	client := b.connect(o.dest)
	mustWrite(t, client, simpleGet)
	client.CloseWrite()
	mustRead(t, client, shortAnswer)
	mustEnd(t, client, false)
	o.played(0)
	b.nothingKept()
}

// What cannot be dialed again is no reason to reset the client.
func TestRetryUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dest := ln.Addr().(*net.TCPAddr).AddrPort()
	b := start(t, absorbing())
	client := b.connect(dest)
	mustWrite(t, client, simpleGet)
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	mustRead(t, c, simpleGet)
	mustWrite(t, c, limited("1"))
	c.Close()
	mustRead(t, client, limited("1"))
	if b.hook.negative(dest) {
		t.Error("the next connection goes untouched, though this client saw no failure")
	}
	mustWrite(t, client, simpleGet) // the connection goes on
	mustEnd(t, client, true)
	b.nothingKept()
}

// A request whose client waits for an answer before it sends the body is not
// held back from it; one whose body came after a 100 is repeated whole.
func TestRetryExpect(t *testing.T) {
	const (
		head = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
		goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	)
	t.Run("refused", func(t *testing.T) {
		b := start(t, absorbing())
		client := b.connect(origin(t, func(c *net.TCPConn) {
			mustRead(t, c, head)
			mustWrite(t, c, limited("1"))
			mustRead(t, c, "hi")
		}))
		mustWrite(t, client, head)
		mustRead(t, client, limited("1"))
		mustWrite(t, client, "hi")
		mustEnd(t, client, false)
		b.nothingKept()
	})
	t.Run("continued", func(t *testing.T) {
		b := start(t, absorbing())
		client := b.connect(origin(t, func(c *net.TCPConn) {
			mustRead(t, c, head)
			mustWrite(t, c, goOn)
			mustRead(t, c, "hi")
			mustWrite(t, c, limited("1"))
			mustRead(t, c, head+"hi")
			mustWrite(t, c, goOn+shortAnswer)
		}))
		mustWrite(t, client, head)
		mustRead(t, client, goOn)
		mustWrite(t, client, "hi")
		mustRead(t, client, goOn+shortAnswer)
		mustEnd(t, client, false)
		b.nothingKept()
	})
}

// An answer that came before the end of the request, or that does not come to
// an end itself, is held back for a while only: its client may wait for it.
func TestRetryGivesUp(t *testing.T) {
	const head = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\n"
	for _, tc := range []struct{ name, request, answer, more, rest string }{
		{"request", head + "he", limited("1"), "llo", ""},
		{"answer", head + "hello", limited("12")[:len(limited("12"))-1], "", "2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, absorbing())
			got := make(chan struct{})
			client := b.connect(origin(t, func(c *net.TCPConn) {
				mustRead(t, c, tc.request)
				mustWrite(t, c, tc.answer)
				<-got
				mustWrite(t, c, tc.rest)
				mustRead(t, c, tc.more+simpleGet)
				mustWrite(t, c, shortAnswer)
			}))
			mustWrite(t, client, tc.request)
			mustRead(t, client, tc.answer)
			close(got)
			mustRead(t, client, tc.rest)
			mustWrite(t, client, tc.more+simpleGet)
			mustRead(t, client, shortAnswer)
			client.Close()
			b.nothingKept()
		})
	}
}

// A request is cut short: what came of it is not sent again.
func TestRetryCutRequest(t *testing.T) {
	const part = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\nhe"
	for _, early := range []bool{false, true} {
		o := newScripted(t, exchange{request: part, answer: limited("1")})
		b := start(t, absorbing())
		client := b.connect(o.dest)
		mustWrite(t, client, part)
		if early {
			waitFor(t, "answer held back", func() (ok bool) {
				b.each(func(c *conn) { ok = c.rs == rsKept })
				return ok
			})
		}
		client.CloseWrite()
		mustRead(t, client, limited("1"))
		mustEnd(t, client, false)
		b.nothingKept()
		o.played(1)
	}
}

// An answer comes before the end of the request, and the origin is gone: the
// rest is still taken, and all of it sent again.
func TestRetryEarlyAndGone(t *testing.T) {
	const put = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 9\r\n\r\nhelloword"
	for _, end := range []deed{doClose, doReset} {
		o := newScripted(t, exchange{request: put, early: len(put) - 5, answer: limited("1"), end: end}, exchange{request: put, answer: shortAnswer})
		b := start(t, absorbing())
		client := b.connect(o.dest)
		mustWrite(t, client, put[:len(put)-5])
		waitFor(t, "answer held back", func() (ok bool) {
			b.each(func(c *conn) {
				if ok = c.rs == rsKept && (c.up.fd < 0 || c.up.eof); ok {
					c.l.timers.stop(&c.timer)
				}
			})
			return ok
		})
		mustWrite(t, client, put[len(put)-5:len(put)-2])
		mustWrite(t, client, put[len(put)-2:])
		mustRead(t, client, shortAnswer)
		client.Close()
		b.nothingKept()
		o.played(2)
	}
}

// An answer comes before the end of the request, which the origin then does not
// read: what is on its way there is not part of the repetition.
func TestRetryUnreadRequest(t *testing.T) {
	const head = "PUT /x HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := "1000\r\n" + strings.Repeat("x", 0x1000) + "\r\n"
	rule := absorbing()
	rule.Retry.MaxBody = maxKept
	b := start(t, rule)
	request := make(chan string, 1)
	var conns atomic.Int64
	client := b.connect(origin(t, func(c *net.TCPConn) {
		if conns.Add(1) == 1 {
			c.SetReadBuffer(1) // the least there is
			mustRead(t, c, head)
			mustWrite(t, c, limited("1"))
			<-t.Context().Done()
			return
		}
		select {
		case all := <-request:
			mustRead(t, c, all)
			mustWrite(t, c, shortAnswer)
		case <-t.Context().Done():
		}
	}))
	mustWrite(t, client, head)
	all := head
	for stalled := false; !stalled; {
		mustWrite(t, client, chunk)
		all += chunk
		waitFor(t, "chunk copied", func() (ok bool) {
			b.each(func(c *conn) {
				if ok = c.rs == rsKept && c.again != nil && len(c.again.request) == len(all); ok {
					c.l.timers.stop(&c.timer)
					stalled = c.client.ok > 0
				}
			})
			return ok
		})
	}
	const end = "0\r\n\r\n"
	mustWrite(t, client, end)
	request <- all + end
	mustRead(t, client, shortAnswer)
	client.Close()
	b.nothingKept()
}

// Five first attempts, whatever becomes of them, make up for one retry.
func TestRetryBudgetGrows(t *testing.T) {
	b := start(t, absorbing())
	client := b.connect(origin(t, plainOrigin))
	ask(t, client, make([]byte, 4096), 10)
	got := 0
	for lane := b.engine.Lanes()[0]; lane.Retries.Withdraw(); {
		got++
	}
	if got != 3+2 {
		t.Errorf("%d retries after 10 first attempts, want 5", got)
	}
}

// The wait of a request is its own, not that of the one before it on the same
// connection, which was repeated.
func TestRetryThenWait(t *testing.T) {
	o := newScripted(t,
		exchange{request: simpleGet, answer: "HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n"},
		exchange{request: simpleGet, answer: shortAnswer},
		exchange{request: simpleGet, answer: shortAnswer})
	rule := absorbing()
	rule.Rate = perSecond(1.5)
	rule.Retry.Statuses = []int{502}
	rule.Queue.MaxWait = time.Second
	b := start(t, rule)
	client := b.connect(o.dest)
	for range 2 {
		mustWrite(t, client, simpleGet)
		mustRead(t, client, shortAnswer)
	}
	o.played(1)
}

// Upgrades are not repeated: the client may have its own idea of what comes
// after the head.
func TestRetryUpgrade(t *testing.T) {
	const upgrade = "GET /ws HTTP/1.1\r\nHost: origin.test\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
	o := newScripted(t, exchange{request: upgrade, answer: limited("1")})
	b := start(t, absorbing())
	client := b.connect(o.dest)
	mustWrite(t, client, upgrade)
	mustRead(t, client, limited("1"))
	client.Close()
	b.nothingKept()
	o.played(1)
}

// When the proxy ends, who waits for a repetition gets the answer that there
// is.
func TestRetryDrain(t *testing.T) {
	o := newScripted(t, exchange{request: simpleGet, answer: slow()})
	b := startWith(t, Config{}, 15*time.Second, patient())
	client := b.connect(o.dest)
	mustWrite(t, client, simpleGet)
	b.waiting()
	if err := b.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	mustRead(t, client, slow())
	mustEnd(t, client, false)
	if got := b.kept.Load(); got != 0 {
		t.Errorf("%d bytes are kept, want none", got)
	}
}

// So does who waits when the gate closes, or finds that it takes too long after
// all.
func TestRetryRefusedLater(t *testing.T) {
	for name, refuse := range map[string]func(b *bench){
		"gate closes":    func(b *bench) { b.gate.Close() },
		"longer closure": func(b *bench) { b.gate.SetCooldown(b.engine.Lanes()[0], mono.Now().Add(20*time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newScripted(t, exchange{request: simpleGet, answer: slow()})
			rule := patient()
			rule.Queue.MaxWait = 2 * time.Hour
			b := start(t, rule)
			client := b.connect(o.dest)
			mustWrite(t, client, simpleGet)
			b.waiting()
			b.each(func(c *conn) {
				if c.waiter.Since == 0 || c.waiter.Since != c.again.since {
					t.Errorf("the wait counts from %v, want from the first attempt at %v", c.waiter.Since, c.again.since)
				}
			})
			refuse(b)
			mustRead(t, client, slow())
			client.Close()
			b.nothingKept()
			o.played(1)
		})
	}
}

// What is kept for all connections together is bounded; beyond it requests go
// as if nothing were repeated.
func TestRetryMemory(t *testing.T) {
	o := newScripted(t, exchange{request: simpleGet, answer: limited("1")}, exchange{request: simpleGet, answer: limited("2")}, exchange{request: simpleGet, answer: shortAnswer})
	b := start(t, absorbing())
	client := b.connect(o.dest)
	for _, tc := range []struct {
		free int64
		want string
	}{
		{0, limited("1")},      // no room for the request
		{maxKept, shortAnswer}, // for all
	} {
		b.kept.Store(maxKept - tc.free)
		mustWrite(t, client, simpleGet)
		mustRead(t, client, tc.want)
		waitFor(t, "exchange over", func() bool { return b.kept.Load() == maxKept-tc.free })
	}
	b.kept.Store(0)
	o.played(1)
}

// Each repetition is told as an event.
func TestRetryEvent(t *testing.T) {
	o := newScripted(t, exchange{request: simpleGet, answer: limited("1")}, exchange{request: simpleGet, answer: shortAnswer})
	b := start(t, absorbing())
	client := b.connect(o.dest)
	mustWrite(t, client, simpleGet)
	mustRead(t, client, shortAnswer)
	for _, ev := range b.cfg.Events.Recent(100) {
		if ev.Kind != policy.EventRetry {
			continue
		}
		if ev.Lane != "test/origin.test/direct" || ev.Detail != "429, attempt 2 of 3" || ev.Wait <= 0 {
			t.Errorf("event %+v, want attempt 2 of 3 after 429, a while later", ev)
		}
		return
	}
	t.Error("no event")
}

// A success tells its quota too, and one that a rule does not want to hear does
// not.
func TestSuccessIsJudged(t *testing.T) {
	for _, off := range []bool{false, true} {
		rule := budget("origin.test", plenty)
		rule.HeadersOff = off
		rule.Queue.MaxWait = time.Second
		const last = "HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 10\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 3600\r\nContent-Length: 0\r\n\r\n"
		b := start(t, rule)
		client := b.connect(origin(t, func(c *net.TCPConn) {
			mustRead(t, c, simpleGet)
			mustWrite(t, c, last)
			if off {
				mustRead(t, c, simpleGet)
				mustWrite(t, c, last)
			}
			io.Copy(io.Discard, c)
		}))
		mustWrite(t, client, simpleGet)
		mustRead(t, client, last)
		mustWrite(t, client, simpleGet)
		want := "HTTP/1.1 429 "
		if off {
			want = last
		}
		mustRead(t, client, want)
		client.Close()
		b.nothingKept()
	}
}

// A budget that bounds connections counts one until it ends, with its first
// answer long past, and one that bounds requests does so for what cannot be
// looked into.
func TestConcurrencyOfConnections(t *testing.T) {
	for _, tc := range []struct {
		name    string
		unit    policy.Unit
		request string
		answer  string
		held    bool // a second connection, while the first is open
	}{
		{"requests of HTTP", policy.Requests, simpleGet, shortAnswer, false},
		{"connections of HTTP", policy.Connections, simpleGet, shortAnswer, true},
		{"opaque, as requests", policy.Requests, "\x00", "\x01", true},
		{"opaque, as connections", policy.Connections, "\x00", "\x01", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule := budget("", plenty)
			rule.Match.Hosts = []policy.HostPattern{{Any: true}}
			rule.Per = 0
			rule.Unit, rule.Concurrency = tc.unit, 1
			b := start(t, rule)
			dest := origin(t, func(c *net.TCPConn) {
				for {
					buf := make([]byte, len(tc.request))
					if _, err := io.ReadFull(c, buf); err != nil {
						return
					}
					mustWrite(t, c, tc.answer)
				}
			})
			first, second := b.connect(dest), b.connect(dest)
			mustWrite(t, first, tc.request)
			mustRead(t, first, tc.answer)
			lane := b.engine.Lanes()[0]
			mustWrite(t, second, tc.request)
			if tc.held {
				waitFor(t, "second connection held", func() bool { return lane.Waiting.Load() == 1 })
				if got := lane.InFlight.Load(); got != 1 {
					t.Errorf("%d under way, want 1", got)
				}
				mustWrite(t, first, tc.request)
				mustRead(t, first, tc.answer)
				first.Close()
			}
			mustRead(t, second, tc.answer)
			first.Close()
			second.Close()
			b.nothingKept()
		})
	}
}
