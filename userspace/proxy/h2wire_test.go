// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/h2"
)

// scarce is a rule by which one request for a path below /held goes, and the
// next one is held. The other paths have none.
func scarce() *policy.Budget {
	rule := one()
	rule.Match.Path = "/held"
	return rule
}

// spend lets the one request go.
func spend(client, server *wire) {
	client.t.Helper()
	client.write(client.request(1, "/held/first"))
	server.want("HEADERS 1 /held/first end")
	server.write(server.answer(1, "200"))
	client.want("HEADERS 1 200 end")
}

// Ahead of a held request pass the frames of the connection and of streams that
// were let go, trailers too; behind it wait its own and later requests, in
// order.
func TestH2OrderAroundHeld(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.post(3, "/open"))
	server.want("HEADERS 3 /open")
	client.write(
		client.post(5, "/held/me", "x", "five"),
		frame(h2.Data, h2.EndStream, 5, "waits"),
		client.request(7, "/behind", "x", "seven"),
		frame(h2.WindowUpdate, 0, 7, u32(7)),
		frame(h2.Settings, 0, 0, ""),
		frame(h2.Ping, 0, 0, "12345678"),
		frame(h2.WindowUpdate, 0, 0, u32(100)),
		frame(h2.WindowUpdate, 0, 3, u32(33)),
		frame(h2.Priority, 0, 9, "\x00\x00\x00\x00\x10"),
		frame(0x10, 0, 0, "unknown"),
		frame(h2.Data, 0, 3, "passes"),
		frame(h2.Headers, h2.EndHeaders|h2.EndStream, 3, client.block("x", "trailer")),
	)
	server.want("SETTINGS 0", "PING 0", "WINDOW 0 100", "WINDOW 3 33", "PRIORITY 9", " 0", "DATA 3 6", "HEADERS 3 trailer end")
	server.write(server.answer(3, "200"))
	client.want("HEADERS 3 200 end")
	server.silent()
	b.let()
	server.want("HEADERS 5 /held/me five", "DATA 5 5 end", "HEADERS 7 /behind seven end", "WINDOW 7 7")
	client.write(client.request(9, "/after", "x", "nine"))
	server.want("HEADERS 9 /after nine end")
}

// A frame that is under way when the gate opens is not cut in two.
func TestH2ReleasedWithinFrame(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.post(3, "/open"), client.request(5, "/held/me"))
	server.want("HEADERS 3 /open")
	data := frame(h2.Data, h2.EndStream, 3, strings.Repeat("d", 1000))
	client.write(data[:500])
	mustRead(t, server.Conn, data[:500])
	waitFor(t, "request held", b.held)
	b.let()
	server.silent()
	client.write(data[500:])
	mustRead(t, server.Conn, data[500:])
	server.want("HEADERS 5 /held/me end")

	// The same for a frame that waits itself.
	client, server = stage2(t, b)
	lane := b.engine.Lanes()[0]
	lane.Cell.Interval.Store(uint64(time.Hour))
	spend(client, server)
	client.write(client.post(3, "/held/me"), data[:500])
	waitFor(t, "request held", b.held)
	b.let()
	server.want("HEADERS 3 /held/me")
	mustRead(t, server.Conn, data[:500])
	client.write(data[500:])
	mustRead(t, server.Conn, data[500:])
}

// A request that is cancelled while it is held leaves the gate and never
// arrives; nor does one behind it.
func TestH2CancelledWhileHeld(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.post(3, "/held/me", "x", "dynamic"), frame(h2.Data, 0, 3, "gone"))
	waitFor(t, "request held", b.held)
	client.write(client.post(5, "/behind", "x", "lost"), frame(h2.Data, 0, 5, "gone, too"), rst(5, h2.Cancel))
	client.write(client.request(7, "/next", "x", "dynamic"))
	client.want("WINDOW 0 9")
	server.silent()
	client.write(rst(3, h2.Cancel))
	client.want("WINDOW 0 4")
	server.want("HEADERS 7 /next dynamic end")
	if b.held() {
		t.Error("it still waits")
	}
}

// A client that leaves while a request of it is held leaves the gate.
func TestH2ClientLeaves(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/held/me"))
	waitFor(t, "request held", b.held)
	client.Close()
	waitFor(t, "the place to be left", func() bool { return !b.held() && b.conns.Load() == 0 })
	mustEnd(t, server.Conn, false)
}

// One that only ended its sending is served.
func TestH2HalfClosed(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/held/me"))
	waitFor(t, "request held", b.held)
	if err := client.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	server.silent()
	b.ring()
	b.let()
	server.want("HEADERS 3 /held/me end")
	mustEnd(t, server.Conn, false)
	server.write(server.answer(3, "200"))
	client.want("HEADERS 3 200 end")
	server.Close()
	mustEnd(t, client.Conn, false)
}

// What the origin says last reaches the client, and a held request leaves.
func TestH2OriginLeaves(t *testing.T) {
	for _, how := range []string{"closes", "resets", "goes away"} {
		t.Run(how, func(t *testing.T) {
			b := start(t, scarce())
			client, server := stage2(t, b)
			spend(client, server)
			client.write(client.request(3, "/held/me"))
			waitFor(t, "request held", b.held)
			switch how {
			case "closes":
				server.write(frame(h2.Ping, 0, 0, "12345678"))
				server.Close()
				client.want("PING 0")
				mustEnd(t, client.Conn, false)
			case "resets":
				if err := server.Conn.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
					t.Fatal(err)
				}
				server.Close()
				mustEnd(t, client.Conn, true)
			case "goes away":
				server.write(frame(h2.GoAway, 0, 0, u32(1)+u32(0)))
				client.want("GOAWAY 0 1 0")
				client.write(client.request(5, "/late"))
				server.silent()
			}
			waitFor(t, "the place to be left", func() bool { return !b.held() })
		})
	}
}

// A refused request is answered between two frames of the origin, never within
// a header block, and never before the origin's first frame.
func TestH2RefusalBetweenFrames(t *testing.T) {
	rule := scarce()
	rule.Queue.MaxWait = time.Second
	b := start(t, rule)
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/open"))
	server.want("HEADERS 3 /open end")
	block := server.block(":status", "200", "x", "cut in three")
	server.write(frame(h2.Headers, 0, 3, block[:1]), frame(h2.Continuation, 0, 3, block[1:4])[:5])
	client.write(client.request(5, "/held/no"))
	part := frame(h2.Headers, 0, 3, block[:1])
	mustRead(t, client.Conn, part)
	client.silent()
	rest := frame(h2.Continuation, 0, 3, block[1:4])[5:] + frame(h2.Continuation, h2.EndHeaders, 3, block[4:])
	data := frame(h2.Data, 0, 3, strings.Repeat("d", 100))
	server.write(rest, data[:50])
	mustRead(t, client.Conn, frame(h2.Continuation, 0, 3, block[1:4])+frame(h2.Continuation, h2.EndHeaders, 3, block[4:]))
	client.want("HEADERS 5 429 end")
	server.write(data[50:])
	client.want("DATA 3 100")
	server.silent()
	if got := b.engine.Tally(b.engine.Lanes()[0].Label, policy.DirectExit).Refused(policy.RefusedMaxWait); got != 1 {
		t.Errorf("%d refusals counted, want 1", got)
	}
}

// What is refused is answered by its kind, with a reset where the budget says drop
// or the request goes on, and what follows on its stream goes nowhere.
func TestH2RefusalKinds(t *testing.T) {
	rule := scarce()
	rule.Queue.MaxWait = time.Second
	dropping := scarce()
	dropping.Name, dropping.Match.Path, dropping.Queue.Max, dropping.OnFull = "drop", "/drop", 0, policy.Drop
	b := start(t, rule, dropping)
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/drop/first"))
	server.want("HEADERS 3 /drop/first end")
	client.write(
		client.post(5, "/held/no"), frame(h2.Data, 0, 5, "nowhere"), frame(h2.WindowUpdate, 0, 5, u32(5)),
		client.request(7, "/drop/no"),
		client.request(9, "/bad", "host", "other.test"),
		client.request(11, "/open"),
	)
	server.want("HEADERS 11 /open end")
	var got []string
	for range 5 {
		f, payload, err := client.next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, client.told(f, payload))
	}
	slices.Sort(got)
	want := []string{"HEADERS 5 429 end", "HEADERS 9 400 end", "RST 5 0", fmt.Sprint("RST 7 ", h2.EnhanceYourCalm), "WINDOW 0 7"}
	if !slices.Equal(got, want) {
		t.Errorf("the client got %q, want %q", got, want)
	}
}

// An origin may speak first, before the client, whose connection is made for it.
func TestH2ServerFirst(t *testing.T) {
	b := start(t, scarce())
	accepted := make(chan *net.TCPConn, 1)
	quit := make(chan struct{})
	client := newWire(t, b.connect(origin(t, func(c *net.TCPConn) { accepted <- c; <-quit })))
	defer close(quit)
	server := newWire(t, <-accepted) // after some time of silence
	server.write(frame(h2.Settings, 0, 0, ""))
	client.silent()
	client.write(h2.Preface, frame(h2.Settings, 0, 0, ""), client.request(1, "/held/first"), client.request(3, "/held/second"))
	client.want("SETTINGS 0")
	mustRead(t, server.Conn, h2.Preface)
	server.want("SETTINGS 0", "HEADERS 1 /held/first end")
	server.silent()
	waitFor(t, "the second to be held", b.held)
}

// An origin that is not what the client takes it for is heard all the same.
func TestH2OtherOrigin(t *testing.T) {
	b := start(t, everyone(plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, h2.Preface)
		mustWrite(t, c, "HTTP/1.1 400 Bad Request\r\n\r\nno")
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}))
	mustWrite(t, client, h2.Preface)
	mustRead(t, client, "HTTP/1.1 400 Bad Request\r\n\r\nno")
	mustEnd(t, client, false)
}

// A client whose framing breaks after something was kept from the origin, or
// whose headers have no end, is told so, and the connection ends.
func TestH2Doubt(t *testing.T) {
	bad := frame(h2.Data, 0, 0, "on no stream")
	for name, test := range map[string]struct {
		refuses bool
		frames  func(c *wire) string
		last    string
	}{
		"after a refusal": {true, func(*wire) string { return bad }, fmt.Sprint("GOAWAY 0 3 ", h2.ProtocolError)},
		"endless headers": {false, func(*wire) string {
			return frame(h2.Headers, 0, 3, "\x82") + strings.Repeat(frame(h2.Continuation, 0, 3, ""), 10000)
		}, fmt.Sprint("GOAWAY 0 1 ", h2.EnhanceYourCalm)},
		"too many fields": {false, func(c *wire) string {
			return frame(h2.Headers, h2.EndHeaders, 3, strings.Repeat("\x82", h2.MaxFields+1))
		}, fmt.Sprint("GOAWAY 0 1 ", h2.EnhanceYourCalm)},
	} {
		t.Run(name, func(t *testing.T) {
			rule := scarce()
			rule.Queue.MaxWait = time.Second
			b := start(t, rule)
			client, server := stage2(t, b)
			spend(client, server)
			if test.refuses {
				client.write(client.request(3, "/held/no"))
				client.want("HEADERS 3 429 end")
			}
			_, _ = io.WriteString(client, test.frames(client))
			client.want(test.last)
			server.SetReadDeadline(time.Now().Add(5 * time.Second))
			if f, payload, err := server.next(); err == nil {
				t.Errorf("the origin got %q", server.told(f, payload))
			}
		})
	}
	t.Run("nothing kept back", func(t *testing.T) {
		b := start(t, scarce())
		client, server := stage2(t, b)
		spend(client, server)
		client.write(bad, "whatever")
		mustRead(t, server.Conn, bad+"whatever")
		server.write("anything")
		mustRead(t, client.Conn, "anything")
	})
}

// An origin that lowers the size of the header table while a request is held gets
// a block that says so, although the client wrote it before it knew.
func TestH2TableLowered(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/held/me", "x", "remembered"))
	waitFor(t, "request held", b.held)
	server.write(frame(h2.Settings, 0, 0, "\x00\x01\x00\x00\x00\x00"))
	server.dec.SetAllowedMaxDynamicTableSize(0)
	client.want("SETTINGS 0")
	client.write(frame(h2.Settings, h2.Ack, 0, ""))
	client.enc.SetMaxDynamicTableSize(0)
	server.want("SETTINGS 0 ack")
	client.write(client.request(5, "/next", "x", "remembered"))
	b.let()
	f, payload, err := server.next()
	if err != nil || payload[0] != 0x20 {
		t.Fatalf("%x, %v: want a size update first", payload, err)
	}
	if got := server.told(f, payload); got != "HEADERS 3 /held/me remembered end" {
		t.Error(got)
	}
	server.want("HEADERS 5 /next remembered end")
}

// A tunnel on a stream counts until that stream ends, not the connection.
func TestH2Tunnel(t *testing.T) {
	rule := everyone(plenty)
	rule.Concurrency = 1
	b := start(t, rule)
	client, server := stage2(t, b)
	client.write(frame(h2.Headers, h2.EndHeaders, 1, client.block(":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "origin.test", ":path", "/chat")))
	server.want("HEADERS 1 /chat")
	server.write(frame(h2.Headers, h2.EndHeaders, 1, server.block(":status", "200")))
	client.want("HEADERS 1 200")
	client.write(frame(h2.Data, 0, 1, "hello"), client.request(3, "/next"))
	server.want("DATA 1 5")
	server.silent()
	waitFor(t, "the next to be held", b.held)
	server.write(frame(h2.Data, h2.EndStream, 1, ""))
	client.want("DATA 1 0 end")
	server.want("HEADERS 3 /next end")
}

// Where the policy refuses QUIC, UDP through a proxy is refused too, in both
// versions of HTTP.
func TestRefusesUDP(t *testing.T) {
	for _, mode := range []policy.QUICMode{policy.QUICAllow, policy.QUICRefuse} {
		b := startPolicy(t, Config{}, 0, &policy.Policy{QUIC: mode, Budgets: []*policy.Budget{everyone(plenty)}})
		client, server := stage2(t, b)
		client.write(frame(h2.Headers, h2.EndHeaders, 1, client.block(":method", "CONNECT", ":protocol", "connect-udp", ":scheme", "https", ":authority", "origin.test", ":path", "/.well-known/masque/udp/192.0.2.1/443/")))
		client.write(client.request(3, "/"))
		if mode == policy.QUICRefuse {
			client.want("HEADERS 1 403 end", "RST 1 0")
			server.want("HEADERS 3 / end")
		} else {
			server.want("HEADERS 1 /.well-known/masque/udp/192.0.2.1/443/", "HEADERS 3 / end")
		}
		dest, n := httpOrigin(t, nil)
		c := b.connect(dest)
		got := roundTrip(t, c, "GET /masque HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: x, connect-udp\r\n\r\n").StatusCode
		if want := map[policy.QUICMode]int{policy.QUICAllow: 200, policy.QUICRefuse: 403}[mode]; got != want {
			t.Errorf("mode %d: status %d to an upgrade, want %d", mode, got, want)
		}
		if mode == policy.QUICRefuse {
			if got := roundTrip(t, c, simpleGet).StatusCode; got != 200 || n.Load() != 1 {
				t.Errorf("status %d of the next request, %d at the origin", got, n.Load())
			}
		}
	}
}

// When the proxy ends, what is under way on streams is finished, what is held is
// not begun, and the client is told to come again elsewhere.
func TestH2Drain(t *testing.T) {
	b := startWith(t, Config{}, 15*time.Second, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	client.write(client.request(3, "/open"), client.request(5, "/held/me"))
	server.want("HEADERS 3 /open end")
	waitFor(t, "request held", b.held)
	ended := make(chan error, 1)
	go func() { ended <- b.stop() }()
	client.want(fmt.Sprint("GOAWAY 0 3 ", h2.NoError))
	client.write(client.request(7, "/late"))
	server.write(frame(h2.Headers, h2.EndHeaders, 3, server.block(":status", "200")), frame(h2.Data, 0, 3, "some"))
	client.want("HEADERS 3 200", "DATA 3 4")
	server.silent()
	server.write(frame(h2.Data, h2.EndStream, 3, "rest"))
	client.want("DATA 3 4 end")
	mustEnd(t, client.Conn, false)
	client.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Inside the tunnel of a proxy, the first request spends only what the tunnel has
// not.
func TestH2InsideTunnel(t *testing.T) {
	paths, all := everyone(plenty), everyone(plenty)
	paths.Name, paths.Match.Path = "paths", "/path"
	all.Name, all.Per = "all", policy.PerExit
	b := startVia(t, gateway(), paths, all)
	accepted := make(chan *net.TCPConn, 1)
	quit := make(chan struct{})
	defer close(quit)
	dest := origin(t, func(c *net.TCPConn) { accepted <- c; <-quit })
	client := newWire(t, b.connect(dest))
	ask := connectTo("origin.test:80", basic("user-a"))
	client.write(ask)
	server := newWire(t, <-accepted)
	mustRead(t, server.Conn, ask)
	server.write("HTTP/1.1 200 OK\r\n\r\n")
	mustRead(t, client.Conn, "HTTP/1.1 200 OK\r\n\r\n")
	client.write(h2.Preface, frame(h2.Settings, 0, 0, ""), client.request(1, "/path/1"), client.request(3, "/path/2"), client.request(5, "/"))
	mustRead(t, server.Conn, h2.Preface)
	server.want("SETTINGS 0", "HEADERS 1 /path/1 end", "HEADERS 3 /path/2 end", "HEADERS 5 / end")
	server.write(frame(h2.Settings, 0, 0, ""), server.answer(5, "200"), server.answer(1, "200"), server.answer(3, "404"))
	client.want("SETTINGS 0", "HEADERS 5 200 end", "HEADERS 1 200 end", "HEADERS 3 404 end")
	for name, want := range map[string]uint64{"paths": 2, "all": 3} {
		lane := laneOf(t, b, name)
		if got := lane.Cell.Granted.Load(); got != want {
			t.Errorf("%d units of %s, want %d", got, name, want)
		}
		waitFor(t, "all to be reported", func() bool { return lane.InFlight.Load() == 0 })
	}
}

// No more than a bound waits behind a held request; all of it arrives in the end.
func TestH2QueueIsBounded(t *testing.T) {
	b := start(t, scarce())
	client, server := stage2(t, b)
	spend(client, server)
	server.write(frame(h2.WindowUpdate, 0, 0, u32(1<<30)))
	client.want(fmt.Sprint("WINDOW 0 ", 1<<30))
	const frames, size = 300, 16000
	head := client.post(3, "/held/me")
	data := frame(h2.Data, 0, 3, strings.Repeat("d", size))
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(client.Conn, head+strings.Repeat(data, frames))
		sent <- err
	}()
	waitFor(t, "the queue to be full", func() (full bool) {
		b.each(func(c *conn) { full = full || c.h2 != nil && c.h2.queued >= maxQueued })
		return full
	})
	time.Sleep(50 * time.Millisecond)
	b.each(func(c *conn) {
		if c.h2 != nil && c.h2.queued > maxQueued+size+h2.FrameHeaderLen {
			t.Errorf("%d bytes wait", c.h2.queued)
		}
	})
	b.let()
	server.want("HEADERS 3 /held/me")
	for range frames {
		server.want(fmt.Sprint("DATA 3 ", size))
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	b.each(func(c *conn) {
		if h := c.h2; h != nil && (h.queued != 0 || h.waits != 0 || h.window != initialWindow+1<<30-frames*size || len(h.behind) != 0 || h.asking != 0) {
			t.Errorf("in the end %d bytes wait, %d of bodies, window %d, streams %v", h.queued, h.waits, h.window, h.behind)
		}
	})
}
