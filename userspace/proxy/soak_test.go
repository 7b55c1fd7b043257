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
	soak(t, nil, func(r *policy.Budget) { r.Queue.MaxWait = 25 * time.Millisecond })
}

// TestSoakRetries is TestSoak with a rule that repeats requests.
func TestSoakRetries(t *testing.T) {
	soak(t, nil, retrying)
}

func retrying(r *policy.Budget) {
	r.Queue = policy.Queue{Max: 40, MaxWait: 100 * time.Millisecond}
	r.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 32 << 10, Statuses: []int{502}}
}

// TestSoakProxied is TestSoakRetries for clients of a proxy, which speak to it
// in all the ways that there are.
func TestSoakProxied(t *testing.T) {
	exit := gateway()
	soak(t, &exit, retrying)
}

func soak(t *testing.T, exit *policy.Exit, shape func(*policy.Budget)) {
	const (
		clients = 60
		span    = 4 * time.Second
	)
	var seen atomic.Int64 // requests of which the origin saw the whole head
	dest := origin(t, func(c *net.TCPConn) {
		rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
		r := bufio.NewReader(c)
		if exit != nil && !letIn(rnd, r, c) {
			return
		}
		for {
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
	var b *bench
	if exit == nil {
		b = start(t, rule)
	} else {
		rule.Match.Hosts = []policy.HostPattern{{Any: true}}
		b = startVia(t, *exit, rule)
	}
	b.connect(dest).Close() // whatever is made once is made
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
	before := descriptors(t)

	var wg sync.WaitGroup
	var answers, refused atomic.Int64
	end := time.Now().Add(span)
	for k := range uint64(clients) {
		wg.Go(func() {
			for rnd := rand.New(rand.NewPCG(k, 2)); time.Now().Before(end); {
				conn := b.dial(policy.Flow{Dest: dest, Exit: policy.DirectExit, UID: uint32(os.Geteuid())})
				if exit != nil && !askIn(rnd, conn) {
					continue
				}
				a, r := misbehave(t, rnd, conn)
				answers.Add(a)
				refused.Add(r)
			}
		})
	}
	wg.Wait()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 && b.conns.Load() == 0 })
	for _, lane := range b.engine.Lanes() {
		if in, waiting := lane.InFlight.Load(), lane.Waiting.Load(); in != 0 || waiting != 0 {
			t.Errorf("lane %s: in flight %d, waiting %d; want none", lane.ID(), in, waiting)
		}
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
	var granted int64
	var retried uint64
	for _, lane := range b.engine.Lanes() {
		if lane.Key.Budget == rule.Name {
			granted += int64(lane.Cell.Granted.Load())
		}
	}
	for _, tally := range b.engine.Tallies() {
		retried += tally.Retried()
	}
	t.Logf("%d granted, %d reached the origin, %d answered, %d refused, %d repeated", granted, seen.Load(), answers.Load(), refused.Load(), retried)
	if (retried > 0) != rule.Retry.Absorb || retried > uint64(granted)/5+3 {
		t.Errorf("%d of %d were repeated, want at most a fifth, and none unless asked to", retried, granted)
	}
	// Tunnels without a request cost one, too.
	if lost := granted - seen.Load(); lost < 0 || lost > 5 && exit == nil {
		t.Errorf("granted %d, but the origin saw %d", granted, seen.Load())
	}
	if granted < 500 || refused.Load() == 0 {
		t.Errorf("%d granted, %d refused: that is no soak", granted, refused.Load())
	}
}

// askIn has a client open a way through a proxy. It reports whether it is open.
func askIn(rnd *rand.Rand, conn net.Conn) bool {
	if conn == nil {
		return true
	}
	ask, answer := "", ""
	switch rnd.IntN(6) {
	case 0:
		return true // to the proxy itself
	case 1:
		ask, answer = connectTo("origin.test:80", basic("user-a")), established
	case 2:
		ask, answer = "\x04\x01\x00\x50\x00\x00\x00\x01user-b\x00origin.test\x00", reply4OK
	case 3:
		ask, answer = greetNone+toName("origin.test", 80), useNone+replyOK
	case 4:
		ask, answer = greetAuth+login("user-c")+toName("origin.test", 80), useAuth+authOK+replyOK
	default: // it does not even get to the end
		ask = greetAuth + login("user-c") + toName("origin.test", 80)
		conn.Write([]byte(ask[:1+rnd.IntN(len(ask)-1)]))
		conn.Close()
		return false
	}
	if rnd.IntN(2) == 0 {
		go conn.Write([]byte(ask))
	} else {
		go pieces(conn, ask, 1+rnd.IntN(10))
	}
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != answer {
		conn.Close()
		return false
	}
	return true
}

// letIn is the proxy's part. Sometimes it does not like it.
func letIn(rnd *rand.Rand, r *bufio.Reader, c net.Conn) bool {
	first, err := r.Peek(1)
	if err != nil {
		return false
	}
	bad := rnd.IntN(40)
	switch first[0] {
	case 'C':
		if _, err := http.ReadRequest(r); err != nil {
			return false
		}
		switch bad {
		case 0:
			return false
		case 1:
			io.WriteString(c, "HTTP/1.1 502 No\r\nRetry-After-Ms: 1\r\nContent-Length: 0\r\n\r\n")
			return false
		case 2:
			io.WriteString(c, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
			return false
		}
		io.WriteString(c, established)
	case 4:
		head := make([]byte, 8)
		if _, err := io.ReadFull(r, head); err != nil {
			return false
		}
		for range 2 {
			if _, err := r.ReadString(0); err != nil {
				return false
			}
		}
		if bad == 0 {
			io.WriteString(c, "\x00\x5b\x00\x00\x00\x00\x00\x00")
			return false
		}
		io.WriteString(c, reply4OK)
	case 5:
		greeting := make([]byte, len(greetNone))
		if _, err := io.ReadFull(r, greeting); err != nil {
			return false
		}
		if greeting[1] == 1 {
			io.WriteString(c, useNone)
		} else {
			r.ReadByte()
			io.WriteString(c, useAuth)
			if _, err := io.ReadFull(r, make([]byte, len(login("user-c")))); err != nil {
				return false
			}
			io.WriteString(c, authOK)
		}
		if _, err := io.ReadFull(r, make([]byte, len(toName("origin.test", 80)))); err != nil {
			return false
		}
		switch bad {
		case 0:
			io.WriteString(c, "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00")
			return false
		case 1:
			io.WriteString(c, replyOK[:3])
			return false
		}
		io.WriteString(c, replyOK)
	}
	return true
}

// dial is connect for many goroutines: it fails no test, and cleans nothing up.
func (b *bench) dial(f policy.Flow) net.Conn {
	if b.exit != nil {
		f.Exit = b.exit.Identity()
	}
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
