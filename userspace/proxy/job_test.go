// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/egressd/egressd/userspace/events"
	"github.com/egressd/egressd/userspace/http1"
)

func TestJob(t *testing.T) {
	log := events.New(0)
	job := func(text string) uint64 {
		t.Helper()
		c := &conn{l: &loop{p: &Proxy{cfg: Config{Events: log}}}}
		c.client.buf = []byte(text + "\r\nHost: a.example\r\n\r\n")
		c.client.w = len(c.client.buf)
		n, err := http1.ParseRequest(&c.req, c.client.buf, 0)
		if err != nil || n == 0 {
			t.Fatalf("%q: %d, %v", text, n, err)
		}
		c.kind = c.req.Kind()
		return c.job()
	}
	if got := job("GET /a HTTP/1.1"); got != 0 {
		t.Errorf("got job %d, want none while nobody listens", got)
	}
	_, sub := log.Subscribe(0, events.Options{Dispatches: true})
	defer sub.Close()
	a := job("GET /a?x=1 HTTP/1.1")
	if a == 0 || a != job("GET /a?x=1 HTTP/1.1\r\nX-Attempt: 2") {
		t.Error("two requests for the same are different jobs")
	}
	for _, other := range []string{"GET /a?x=2 HTTP/1.1", "HEAD /a?x=1 HTTP/1.1", "GET http://b.example/a?x=1 HTTP/1.1"} {
		if job(other) == a {
			t.Errorf("%q is the same job as GET /a?x=1", other)
		}
	}
	for _, unknown := range []string{"POST /a HTTP/1.1", "CONNECT a.example:443 HTTP/1.1"} {
		if got := job(unknown); got != 0 {
			t.Errorf("%q: got job %d, want none", unknown, got)
		}
	}
	if one, two := job("POST /a HTTP/1.1\r\nIdempotency-Key: 1"), job("POST /a HTTP/1.1\r\nIdempotency-Key: 2"); one == 0 || one == two {
		t.Error("requests with different keys are one job, or none")
	}
}
