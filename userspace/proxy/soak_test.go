// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestSoak has clients of all manners, and an origin with manners of its own,
// at it for some seconds, with a gate that holds and refuses. Afterwards
// nothing may be left, and every unit be accounted for.
func TestSoak(t *testing.T) {
	soak(t, func(r *policy.Budget) { r.Queue.MaxWait = 25 * time.Millisecond })
}

// TestSoakRetries is TestSoak with a rule that repeats requests.
func TestSoakRetries(t *testing.T) {
	soak(t, func(r *policy.Budget) {
		r.Queue = policy.Queue{Max: 40, MaxWait: 100 * time.Millisecond}
		r.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 32 << 10, Statuses: []int{502}}
	})
}

func soak(t *testing.T, shape func(*policy.Budget)) {
	const (
		clients = 60
		span    = 4 * time.Second
	)
	var seen atomic.Int64 // requests of which the origin saw the whole head
	dest := origin(t, func(c *net.TCPConn) {
		rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			seen.Add(1)
			switch rnd.IntN(30) {
			case 0:
				return // before it has read the body
			case 1:
				c.SetLinger(0)
				return
			case 2:
				io.WriteString(c, "HTTP/1.1 200 OK\r\nConte")
				return
			case 3:
				io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it")
				return
			case 4:
				io.WriteString(c, "HTTP/1.1 502 Bad\r\nConnection: close\r\n\r\nlater") // before it has read the body
				return
			case 5:
				io.WriteString(c, "HTTP/1.1 502 Bad\r\nContent-Length: 100\r\n\r\nlat")
				return
			case 6, 7, 8, 9:
				io.Copy(io.Discard, req.Body)
				io.WriteString(c, "HTTP/1.1 502 Bad\r\nRetry-After-Ms: 1\r\nContent-Length: 5\r\n\r\nlater")
				continue
			}
			io.Copy(io.Discard, req.Body)
			if rnd.IntN(10) == 0 {
				time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
			}
			body := strings.Repeat("x", rnd.IntN(1<<rnd.IntN(17)))
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
				return
			}
		}
	})
	rule := budget("origin.test", perSecond(2000))
	shape(rule)
	b := start(t, rule)
	b.connect(dest).Close() // whatever is made once is made
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
	before := descriptors(t)

	var wg sync.WaitGroup
	var answers, refused atomic.Int64
	end := time.Now().Add(span)
	for k := range uint64(clients) {
		wg.Go(func() {
			for rnd := rand.New(rand.NewPCG(k, 2)); time.Now().Before(end); {
				a, r := misbehave(t, rnd, b.dial(policy.Flow{Dest: dest, Exit: policy.DirectExit, UID: uint32(os.Geteuid())}))
				answers.Add(a)
				refused.Add(r)
			}
		})
	}
	wg.Wait()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 && b.conns.Load() == 0 })
	lane := b.engine.Lanes()[0]
	if in, waiting := lane.InFlight.Load(), lane.Waiting.Load(); in != 0 || waiting != 0 {
		t.Errorf("in flight %d, waiting %d; want none", in, waiting)
	}
	// Idle pipes are kept for reuse, and nothing else is.
	var pipes, stock int
	for _, l := range b.loops {
		done := make(chan struct{})
		l.post(func() { pipes += 2 * len(l.pipes.stock); stock += len(l.buffers.stock); close(done) })
		<-done
	}
	waitFor(t, fmt.Sprintf("%d descriptors and %d of pipes", before, pipes), func() bool { return descriptors(t) <= before+pipes })
	kept := b.kept.Load()
	if kept != 0 {
		t.Errorf("%d bytes of requests are kept, want none", kept)
	}
	if stock > clients*4 {
		t.Errorf("%d buffers in stock, want at most two for each of %d connections, on each loop", stock, clients)
	}
	// A unit is spent by each request of which anything was written. Nearly all
	// of those arrive whole: a reset may overtake one.
	granted := int64(lane.Cell.Granted.Load())
	retried := lane.Tally.Retried()
	t.Logf("%d granted, %d reached the origin, %d answered, %d refused, %d repeated", granted, seen.Load(), answers.Load(), refused.Load(), retried)
	if (retried > 0) != rule.Retry.Absorb || retried > uint64(granted)/5+3 {
		t.Errorf("%d of %d were repeated, want at most a fifth, and none unless asked to", retried, granted)
	}
	if lost := granted - seen.Load(); lost < 0 || lost > 5 {
		t.Errorf("granted %d, but the origin saw %d", granted, seen.Load())
	}
	if granted < 500 || refused.Load() == 0 {
		t.Errorf("%d granted, %d refused: that is no soak", granted, refused.Load())
	}
}

// dial is connect for many goroutines: it fails no test, and cleans nothing up.
func (b *bench) dial(f policy.Flow) net.Conn {
	c, err := net.Dial("tcp4", fmt.Sprintf("%v:%d", b.hook.token(f), b.port))
	if err != nil {
		return nil
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// misbehave is one connection of a client.
func misbehave(t *testing.T, rnd *rand.Rand, conn net.Conn) (answers, refused int64) {
	if conn == nil {
		t.Error("no connection")
		return
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	if rnd.IntN(10) == 0 {
		c.SetLinger(0)
	}
	r := bufio.NewReader(c)
	for range 1 + rnd.IntN(20) {
		n := 1
		if rnd.IntN(5) == 0 {
			n = 1 + rnd.IntN(20) // pipelined
		}
		var all strings.Builder
		for range n {
			switch rnd.IntN(4) {
			case 0:
				body := strings.Repeat("b", rnd.IntN(1<<rnd.IntN(17)))
				fmt.Fprintf(&all, "POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			case 1:
				all.WriteString("PUT / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
			default:
				all.WriteString(simpleGet)
			}
		}
		text := all.String()
		if rnd.IntN(20) == 0 {
			c.Write([]byte(text[:rnd.IntN(len(text))]))
			return // in the middle of it
		}
		go c.Write([]byte(text)) // more than fits may be answered while it is written
		switch rnd.IntN(25) {
		case 0:
			return // at once
		case 1:
			c.CloseWrite()
		case 2:
			time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
			return
		}
		for range n {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				return
			}
			if resp.StatusCode == 429 {
				refused++
			} else {
				answers++
			}
			if resp.Close {
				return
			}
		}
	}
	return
}

// descriptors is how many the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
