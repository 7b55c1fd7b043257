// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 golang.org/x/net/http2 serves and speaks HTTP/2 on connections that a test made itself, and has settings that net/http has not.

package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/userspace/h2"
)

// h2Origin is an origin of HTTP/2 without TLS.
func h2Origin(t testing.TB, conf *http2.Server, serve http.HandlerFunc) netip.AddrPort {
	t.Helper()
	if conf == nil {
		conf = new(http2.Server)
	}
	return origin(t, func(c *net.TCPConn) {
		c.SetDeadline(time.Time{})
		conf.ServeConn(c, &http2.ServeConnOpts{Handler: serve, BaseConfig: &http.Server{}})
	})
}

// h2Client is a client of HTTP/2 without TLS whose connections go through b, or
// straight if b is nil.
func h2Client(t testing.TB, b *bench, dest netip.AddrPort) *http.Client {
	tr := &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) {
			if b == nil {
				return net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(dest))
			}
			c := b.connect(dest)
			c.SetDeadline(time.Time{})
			return c, nil
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// door is an address at which programs reach dest through b.
func door(t testing.TB, b *bench, dest netip.AddrPort) netip.AddrPort {
	t.Helper()
	return tappedDoor(t, b, dest, io.Discard)
}

// tappedDoor is door that writes to tap what programs say.
func tappedDoor(t testing.TB, b *bench, dest netip.AddrPort, tap io.Writer) netip.AddrPort {
	t.Helper()
	return origin(t, func(c *net.TCPConn) {
		c.SetDeadline(time.Time{})
		up := b.connect(dest)
		up.SetDeadline(time.Time{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(up, io.TeeReader(c, tap))
			_ = up.CloseWrite()
		}()
		_, _ = io.Copy(c, up)
		_ = c.CloseWrite()
		<-done
	})
}

// program runs a program that has to be there, and returns what it prints.
func program(t testing.TB, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// wire is one end of a connection of HTTP/2 that a test plays frame by frame.
type wire struct {
	t testing.TB
	net.Conn
	enc  *hpack.Encoder
	head bytes.Buffer
	dec  *hpack.Decoder
}

func newWire(t testing.TB, c net.Conn) *wire {
	w := &wire{t: t, Conn: c, dec: hpack.NewDecoder(4096, nil)}
	w.enc = hpack.NewEncoder(&w.head)
	return w
}

// frame is a frame as it is on the wire.
func frame(typ h2.FrameType, flags h2.Flags, stream uint32, payload string) string {
	return string(h2.AppendFrameHeader(nil, h2.FrameHeader{Length: uint32(len(payload)), Type: typ, Flags: flags, Stream: stream})) + payload
}

func u32(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }

func rst(stream uint32, code h2.Code) string {
	return frame(h2.RSTStream, 0, stream, u32(uint32(code)))
}

// block is a header block of these names and values.
func (w *wire) block(fields ...string) string {
	w.head.Reset()
	for i := 0; i < len(fields); i += 2 {
		if err := w.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.head.String()
}

// request is a whole GET for path on a stream, and further fields.
func (w *wire) request(stream uint32, path string, more ...string) string {
	return frame(h2.Headers, h2.EndHeaders|h2.EndStream, stream, w.block(append([]string{":method", "GET", ":scheme", "http", ":authority", "origin.test", ":path", path}, more...)...))
}

// post is the head of a POST.
func (w *wire) post(stream uint32, path string, more ...string) string {
	return frame(h2.Headers, h2.EndHeaders, stream, w.block(append([]string{":method", "POST", ":scheme", "http", ":authority", "origin.test", ":path", path}, more...)...))
}

// answer is a whole answer.
func (w *wire) answer(stream uint32, status string, more ...string) string {
	return frame(h2.Headers, h2.EndHeaders|h2.EndStream, stream, w.block(append([]string{":status", status}, more...)...))
}

func (w *wire) write(frames ...string) {
	w.t.Helper()
	mustWrite(w.t, w.Conn, strings.Join(frames, ""))
}

// next reads a frame.
func (w *wire) next() (f h2.FrameHeader, payload string, err error) {
	var head [h2.FrameHeaderLen]byte
	if _, err := io.ReadFull(w.Conn, head[:]); err != nil {
		return f, "", err
	}
	f = h2.ParseFrameHeader(head[:])
	b := make([]byte, f.Length)
	if _, err := io.ReadFull(w.Conn, b); err != nil {
		return f, "", err
	}
	return f, string(b), nil
}

// told is a frame in words, with the fields of a head that matter.
func (w *wire) told(f h2.FrameHeader, payload string) string {
	names := map[h2.FrameType]string{
		h2.Data: "DATA", h2.Headers: "HEADERS", h2.Priority: "PRIORITY", h2.RSTStream: "RST", h2.Settings: "SETTINGS",
		h2.Ping: "PING", h2.GoAway: "GOAWAY", h2.WindowUpdate: "WINDOW", h2.Continuation: "CONTINUATION",
	}
	s := fmt.Sprintf("%s %d", names[f.Type], f.Stream)
	switch f.Type {
	case h2.Headers:
		if f.Has(h2.PriorityFlag) {
			payload = payload[5:]
		}
		fields, err := w.dec.DecodeFull([]byte(payload))
		if err != nil {
			w.t.Fatalf("header block on stream %d: %v", f.Stream, err)
		}
		for _, v := range fields {
			switch v.Name {
			case ":path", ":status", "x":
				s += " " + v.Value
			}
		}
	case h2.Data:
		s += fmt.Sprint(" ", len(payload))
	case h2.RSTStream, h2.WindowUpdate:
		s += fmt.Sprint(" ", binary.BigEndian.Uint32([]byte(payload)))
	case h2.GoAway:
		s += fmt.Sprint(" ", binary.BigEndian.Uint32([]byte(payload)), " ", binary.BigEndian.Uint32([]byte(payload[4:])))
	}
	if f.EndsStream() {
		s += " end"
	}
	if f.Type == h2.Settings && f.Has(h2.Ack) {
		s += " ack"
	}
	return s
}

// want reads a frame for each, and compares.
func (w *wire) want(frames ...string) {
	w.t.Helper()
	for _, want := range frames {
		f, payload, err := w.next()
		if err != nil {
			w.t.Fatalf("waiting for %q: %v", want, err)
		}
		if got := w.told(f, payload); got != want {
			w.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// silent fails if anything comes within a short time.
func (w *wire) silent() {
	w.t.Helper()
	w.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	f, payload, err := w.next()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		w.t.Fatalf("got %q, %v, want nothing yet", w.told(f, payload), err)
	}
	w.SetReadDeadline(time.Now().Add(20 * time.Second))
}

// stage2 is a client and an origin that a test plays, with a proxy between.
// Both have greeted.
func stage2(t testing.TB, b *bench) (client, server *wire) {
	t.Helper()
	accepted := make(chan *net.TCPConn)
	quit := make(chan struct{})
	dest := origin(t, func(c *net.TCPConn) {
		select {
		case accepted <- c:
			<-quit
		case <-quit:
		}
	})
	t.Cleanup(func() { close(quit) })
	client = newWire(t, b.connect(dest))
	client.write(h2.Preface, frame(h2.Settings, 0, 0, ""))
	server = newWire(t, <-accepted)
	mustRead(t, server.Conn, h2.Preface)
	server.want("SETTINGS 0")
	server.write(frame(h2.Settings, 0, 0, ""))
	client.want("SETTINGS 0")
	client.write(frame(h2.Settings, h2.Ack, 0, ""))
	server.want("SETTINGS 0 ack")
	return client, server
}
