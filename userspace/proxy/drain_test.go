// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// When the proxy ends, what is under way is finished, what is idle ends in
// order, and what has not reached the origin breaks, whoever else is busy.
func TestDrain(t *testing.T) {
	rule := budget("origin.test", plenty)
	closed := one()
	closed.Name = "closed"
	closed.Match.Hosts[0].Any, closed.Match.Hosts[0].Name = false, "held.test"
	b := startWith(t, Config{}, 15*time.Second, rule, closed)
	served := b.connect(origin(t, plainOrigin))
	ask(t, served, make([]byte, 4096), 1)

	answer := make(chan struct{})
	busy := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, shortAnswer[:len(shortAnswer)-2])
		<-answer
		mustWrite(t, c, "ok")
		mustEnd(t, c, false)
	}))
	mustWrite(t, busy, simpleGet)
	mustRead(t, busy, shortAnswer[:len(shortAnswer)-2])

	tunnel := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "\x00")
		mustWrite(t, c, "\x01")
		mustRead(t, c, "more")
		mustWrite(t, c, "answer")
	}))
	mustWrite(t, tunnel, "\x00")
	mustRead(t, tunnel, "\x01")

	const toHeld = "GET / HTTP/1.1\r\nHost: held.test\r\n\r\n"
	dest, n := httpOrigin(t, nil)
	roundTrip(t, b.connect(dest), toHeld)
	held := b.connect(dest)
	mustWrite(t, held, toHeld)
	waitFor(t, "request held", func() bool {
		for _, l := range b.engine.Lanes() {
			if l.Waiting.Load() == 1 {
				return true
			}
		}
		return false
	})

	ended := make(chan error, 1)
	go func() { ended <- b.stop() }()
	mustEnd(t, served, false)
	mustEnd(t, held, true)
	close(answer)
	mustRead(t, busy, "ok")
	mustEnd(t, busy, false)
	select {
	case <-ended:
		t.Error("the proxy has ended with a tunnel open")
	case <-time.After(2 * tick):
	}
	mustWrite(t, tunnel, "more")
	mustRead(t, tunnel, "answer")
	mustEnd(t, tunnel, false)
	tunnel.Close()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if got := n.Load(); got != 1 {
		t.Errorf("origin saw %d requests, want 1", got)
	}
	if got := b.conns.Load(); got != 0 {
		t.Errorf("%d connections are counted, want none", got)
	}
}

// What is still open when the time is over breaks.
func TestDrainIsOver(t *testing.T) {
	b := startWith(t, Config{}, 3*tick)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "\x00")
		mustWrite(t, c, "\x01")
		mustEnd(t, c, true)
	}))
	mustWrite(t, client, "\x00")
	mustRead(t, client, "\x01")
	if err := b.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	mustEnd(t, client, true)
}

// A connection for a loop that has ended is reset, and not counted.
func TestConnectionForEndedLoop(t *testing.T) {
	b := start(t)
	dest := origin(t, plainOrigin)
	end := func(ended bool) {
		b.loops[1].mu.Lock()
		defer b.loops[1].mu.Unlock()
		b.loops[1].ended = ended
	}
	end(true)
	defer end(false)
	broken := 0
	for range 2 {
		c := b.dial(policy.Flow{Dest: dest, UID: uint32(os.Geteuid())})
		if c == nil { // reset before the dial returned
			broken++
			continue
		}
		defer c.Close()
		c.Write([]byte(simpleGet))
		if n, _ := c.Read(make([]byte, 100)); n == 0 {
			broken++
		}
	}
	if got := b.conns.Load(); broken != 1 || got != 1 {
		t.Errorf("%d broken, %d counted; want one of each", broken, got)
	}
}
