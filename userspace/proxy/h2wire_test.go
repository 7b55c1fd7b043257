// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
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
