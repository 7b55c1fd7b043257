// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

const host = "shop.test"

// serveOrigin starts an origin for a test.
func serveOrigin(t *testing.T, c Config) (o *Origin, authority *Authority, addr string) {
	t.Helper()
	authority, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	if c.Certificate, err = authority.Certify(host); err != nil {
		t.Fatal(err)
	}
	if o, err = New(c); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- o.Serve(ln) }()
	t.Cleanup(func() {
		if err := o.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("close: %v", err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("served until %v, want %v", err, net.ErrClosed)
		}
	})
	return o, authority, ln.Addr().String()
}

// trusting is what a client in Go needs to know of an authority.
func trusting(a *Authority, protocols ...string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, ServerName: host, NextProtos: protocols}
}

// client is net/http, of HTTP/2 or HTTP/1.1.
func client(t *testing.T, a *Authority, addr string, http2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: trusting(a), Protocols: new(http.Protocols), DialContext: (&net.Dialer{}).DialContext}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func TestNetHTTP(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			o, authority, addr := serveOrigin(t, Config{
				Rate: 0.01, Tell: true,
				Forced: []Forced{{Path: "/forced", Status: 503, RetryAfter: "7"}},
				Pages:  map[string]string{"/page": "<p>"},
			})
			c := client(t, authority, addr, http2)
			get := func(method, path string, body io.Reader) (status int, after, text string) {
				t.Helper()
				req, err := http.NewRequest(method, "https://"+addr+path, body)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				all, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				if got := resp.Header.Get("X-Ratelimit-Remaining"); got != "0" || resp.ProtoMajor == 2 != http2 {
					t.Errorf("%s: got X-RateLimit-Remaining %q and %s", path, got, resp.Proto)
				}
				return resp.StatusCode, resp.Header.Get("Retry-After"), string(all)
			}
			for i, tt := range []struct {
				method, path, body string
				chunked            bool
				status             int
				after, text        string
			}{
				{"GET", "/0", "", false, 200, "", "hello\n"},
				{"GET", "/1", "", false, 429, "100", "hello\n"},
				{"GET", "/page", "", false, 200, "", "<p>"},
				{"GET", "/forced?body=200000", "", false, 503, "7", strings.Repeat("x", 200000)},
				{"POST", "/forced", strings.Repeat("y", 300000), false, 503, "7", "hello\n"},
				{"POST", "/forced", strings.Repeat("z", 300000), true, 503, "7", "hello\n"},
				{"HEAD", "/forced", "", false, 503, "7", ""},
				{"GET", "/2", "", false, 429, "100", "hello\n"},
			} {
				var body io.Reader
				if tt.body != "" {
					body = strings.NewReader(tt.body)
					if tt.chunked {
						body = io.MultiReader(body)
					}
				}
				status, after, text := get(tt.method, tt.path, body)
				if status != tt.status || after != tt.after || text != tt.text {
					t.Errorf("%s %s: got %d, Retry-After %q and %d bytes, want %d, %q and %d",
						tt.method, tt.path, status, after, len(text), tt.status, tt.after, len(tt.text))
				}
				l := o.Log()
				r := l.Requests[i]
				if r.Method != tt.method || r.Path != tt.path || r.Status != tt.status || r.RetryAfter != tt.after ||
					r.Connection != 1 || (r.Stream != 0) != http2 || r.Client != "127.0.0.1" {
					t.Errorf("%s %s: the log has %+v", tt.method, tt.path, r)
				}
				if i > 0 && r.At <= l.Requests[i-1].At {
					t.Errorf("%s %s: came at %d, the one before at %d", tt.method, tt.path, r.At, l.Requests[i-1].At)
				}
			}
			l := o.Log()
			if len(l.Connections) != 1 {
				t.Fatalf("got connections %+v, want one", l.Connections)
			}
			conn := l.Connections[0]
			if conn.Version != tls.VersionTLS13 || conn.Err != "" || len(conn.JA4) != 36 || conn.Resumed || len(conn.Random) != 64 {
				t.Errorf("got connection %+v", conn)
			}
			if (conn.HTTP2 != nil) != http2 {
				t.Errorf("got HTTP/2 %+v, want some: %v", conn.HTTP2, http2)
			}
		})
	}
}

// TestParallel has many requests at a time on one HTTP/2 connection, with bodies
// that do not fit the windows.
func TestParallel(t *testing.T) {
	o, authority, addr := serveOrigin(t, Config{})
	c := client(t, authority, addr, true)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			resp, err := c.Get(fmt.Sprintf("https://%s/%d?body=%d", addr, i, i*2000))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if n, err := io.Copy(io.Discard, resp.Body); n != int64(i*2000) || err != nil {
				t.Errorf("request %d: got %d bytes and %v, want %d", i, n, err, i*2000)
			}
		})
	}
	wg.Wait()
	streams := map[string]bool{}
	l := o.Log()
	for _, r := range l.Requests {
		streams[fmt.Sprint(r.Connection, r.Stream)] = true
	}
	if len(l.Requests) != 100 || len(streams) != 100 {
		t.Errorf("got %d requests on %d streams, want 100", len(l.Requests), len(streams))
	}
}

func TestFieldsAsSent(t *testing.T) {
	o, authority, addr := serveOrigin(t, Config{})
	conn, err := tls.Dial("tcp", addr, trusting(authority))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Two requests at once, and each byte a record of its own.
	for _, b := range []byte("GET /a HTTP/1.1\r\nhOst: x\r\nX-b:  1 \r\nx-A:2\r\n\r\nGET /b HTTP/1.0\r\nB: \r\nHOST: y\r\n\r\n") {
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	in := bufio.NewReader(conn)
	for range 2 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after a request of HTTP/1.0: got %v, want the end", err)
	}
	l := o.Log()
	var got [][]string
	for _, r := range l.Requests {
		got = append(got, append([]string{r.Line}, r.Names()...))
	}
	want := [][]string{{"GET /a HTTP/1.1", "hOst", "X-b", "x-A"}, {"GET /b HTTP/1.0", "B", "HOST"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if l.Requests[0].Fields[1] != (Field{"X-b", "1"}) {
		t.Errorf("got field %q", l.Requests[0].Fields[1])
	}
}

// TestHTTP2AsSent sends a beginning of HTTP/2 by hand.
func TestHTTP2AsSent(t *testing.T) {
	o, authority, addr := serveOrigin(t, Config{})
	conn, err := tls.Dial("tcp", addr, trusting(authority, "h2"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := []byte(preface)
	b = appendFrame(b, frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 3, 0, 1, 0, 0, 16, 0}) // a window of 3
	b = appendFrame(b, frameWindowUpdate, 0, 0, []byte{0, 0, 1, 0})
	b = appendFrame(b, framePriority, 0, 3, []byte{0x80, 0, 0, 0, 200})
	// A padded head with a priority, in three frames: :path, :method, :scheme and two others.
	b = appendFrame(b, frameHeaders, flagEndStream|flagPadded|flagPriority, 5, []byte{2, 0, 0, 0, 3, 9, 0x84, 0, 0})
	b = appendFrame(b, frameContinuation, 0, 5, []byte{0x82, 0x87})
	b = appendFrame(b, frameContinuation, flagEndHeaders, 5, append([]byte{0x41, 1, 'x'}, 0x53, 1, 'y'))
	b = appendFrame(b, 0x77, 0, 0, []byte("a type that nobody knows"))
	b = appendFrame(b, frameWindowUpdate, 0, 0, []byte{0, 1, 0, 0}) // not of the beginning
	b = appendFrame(b, frameSettings, 0, 0, []byte{0, 5, 0, 0, 0x40, 0})
	for _, part := range [][]byte{b[:30], b[30:31], b[31:90], b[90:]} {
		if _, err := conn.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	// "hello\n" waits until the window opens.
	in := bufio.NewReader(conn)
	var body []byte
	for ended := false; !ended; {
		f, err := readFrame(in)
		if err != nil {
			t.Fatal(err)
		}
		if f.kind == frameData {
			body = append(body, f.payload...)
			ended = f.has(flagEndStream)
			if len(body) == 3 {
				if _, err := conn.Write(appendFrame(nil, frameWindowUpdate, 0, 5, []byte{0, 0, 0, 9})); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if string(body) != "hello\n" {
		t.Errorf("got body %q", body)
	}
	l := o.Log()
	want := HTTP2{Settings: []Setting{{4, 3}, {1, 4096}}, WindowUpdate: 256, Priorities: []Priority{{3, true, 0, 201}}, Pseudo: "p,m,s,a"}
	if got := l.Connections[0].HTTP2; got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if r := l.Requests[0]; !reflect.DeepEqual(r.Names(), []string{":path", ":method", ":scheme", ":authority", "accept"}) ||
		r.Priority == nil || *r.Priority != (Priority{5, false, 3, 10}) {
		t.Errorf("got request %+v", r)
	}
}

// TestHTTP2Windows takes no more than the windows allow: that of the connection,
// then that of a stream.
func TestHTTP2Windows(t *testing.T) {
	_, authority, addr := serveOrigin(t, Config{})
	conn, err := tls.Dial("tcp", addr, trusting(authority, "h2"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	// bodies sends b and a PING after it, and counts what bodies came before the answer.
	bodies := func(b []byte) (n int) {
		t.Helper()
		if _, err := conn.Write(appendFrame(b, framePing, 0, 0, make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
		for {
			f, err := readFrame(in)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case f.kind == frameData:
				n += len(f.payload)
			case f.kind == framePing && f.has(flagAck):
				return n
			}
		}
	}
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: "/?body=100000"}} {
		if err := fields.WriteField(f); err != nil {
			t.Fatal(err)
		}
	}
	begin := appendFrame([]byte(preface), frameSettings, 0, 0, []byte{0, 4, 0, 1, 0x38, 0x80}) // streams of 80000
	begin = appendFrame(begin, frameHeaders, flagEndHeaders|flagEndStream, 1, block.Bytes())
	for i, step := range []struct {
		send []byte
		want int
	}{
		{begin, 65535},
		{nil, 0},
		{appendFrame(nil, frameWindowUpdate, 0, 0, []byte{0, 1, 0, 0}), 80000 - 65535},
		{appendFrame(nil, frameWindowUpdate, 0, 1, []byte{0, 0, 0, 5}), 5},
		{appendFrame(nil, frameSettings, 0, 0, []byte{0, 4, 0, 1, 0x38, 0x87}), 7},
		{appendFrame(nil, frameWindowUpdate, 0, 1, []byte{0, 1, 0, 0}), 100000 - 80000 - 5 - 7},
	} {
		if got := bodies(step.send); got != step.want {
			t.Errorf("step %d: got %d bytes, want %d", i, got, step.want)
		}
	}
}

// TestErrors looks at what the log says of clients that do wrong.
func TestErrors(t *testing.T) {
	head := func(fields string) []byte { return []byte("GET / HTTP/1.1\r\n" + fields + "\r\n\r\n") }
	for _, tt := range []struct {
		name, protocol string
		send           []byte
		want           string
	}{
		{"no preface", "h2", bytes.Repeat([]byte("x"), len(preface)), "in the place of the preface"},
		{"frame too long", "h2", append([]byte(preface), 0xff, 0, 0, 0, 0, 0, 0, 0, 0), "a frame of 16711680 bytes"},
		{"padding", "h2", appendFrame([]byte(preface), frameHeaders, flagPadded, 1, []byte{2, 0}), "more padding than frame"},
		{"priority", "h2", appendFrame([]byte(preface), framePriority, 0, 1, []byte{2, 0}), "a priority of 2 bytes"},
		{"settings", "h2", appendFrame([]byte(preface), frameSettings, 0, 0, []byte{2, 0}), "a SETTINGS frame of 2 bytes"},
		{"window", "h2", appendFrame([]byte(preface), frameWindowUpdate, 0, 0, []byte{2, 0}), "a WINDOW_UPDATE frame of 2 bytes"},
		{"continuation", "h2", appendFrame([]byte(preface), frameContinuation, 0, 1, nil), "continues nothing"},
		{"no continuation", "h2", appendFrame(appendFrame([]byte(preface), frameHeaders, 0, 1, nil), framePing, 0, 0, make([]byte, 8)), "does not end"},
		{"index", "h2", appendFrame([]byte(preface), frameHeaders, flagEndHeaders, 1, []byte{0xff, 0xff, 0}), "stream 1:"},
		{"no HTTP", "http/1.1", head(" x"), "read a request"},
		{"long head", "http/1.1", head("A: " + strings.Repeat("x", maxHead)), "too long"},
		{"cut head", "http/1.1", []byte("GET / HTTP"), "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, authority, addr := serveOrigin(t, Config{})
			conn, err := tls.Dial("tcp", addr, trusting(authority, tt.protocol))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(tt.send); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			// A reset is as good an end as any: there may be more than was read.
			_, _ = io.Copy(io.Discard, conn)
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				l := o.Log()
				if len(l.Connections) == 1 && l.Connections[0].Err != "" {
					if got := l.Connections[0].Err; !strings.Contains(got, tt.want) {
						t.Errorf("got error %q, want %q in it", got, tt.want)
					}
					if len(l.Requests) > 0 {
						t.Errorf("got requests %+v", l.Requests)
					}
					return
				}
				if time.Now().After(end) {
					t.Fatalf("got log %+v, want an error", l)
				}
			}
		})
	}
	t.Run("no TLS", func(t *testing.T) {
		o, _, addr := serveOrigin(t, Config{})
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(head("A: b")); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn)
		if l := o.Log(); len(l.Connections) != 1 || l.Connections[0].Err == "" || l.Connections[0].Version != 0 {
			t.Errorf("got log %+v, want one failed handshake", l)
		}
	})
}

func TestLimiter(t *testing.T) {
	const ms = int64(time.Millisecond)
	l := limiter{every: 100 * time.Millisecond, last: map[string]int64{}}
	for i, tt := range []struct {
		client string
		at     int64
		ok     bool
		wait   time.Duration
	}{
		{"a", 1000 * ms, true, 0},
		{"a", 1099 * ms, false, time.Millisecond},
		{"b", 1099 * ms, true, 0},
		{"a", 1100 * ms, true, 0}, // what was limited cost nothing
		{"a", 1100 * ms, false, 100 * time.Millisecond},
		{"a", 1900 * ms, true, 0}, // and what was not used is not saved
		{"a", 1950 * ms, false, 50 * time.Millisecond},
	} {
		if ok, wait := l.allow(tt.client, tt.at); ok != tt.ok || !ok && wait != tt.wait {
			t.Errorf("step %d: got %v, wait %v, want %v, %v", i, ok, wait, tt.ok, tt.wait)
		}
	}
	free := limiter{}
	for range 2 {
		if ok, _ := free.allow("a", 1); !ok {
			t.Error("an origin without a limit limits")
		}
	}
}

// TestServe runs the command with a real client, which resumes its session.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "serve")
	if out, err := exec.Command("go", "build", "-o", bin, "./serve").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	trust, socket := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "log")
	cmd := exec.Command(bin, "-trust", trust, "-log", socket, "-host", host, "-force", "/x=429,3", "-protocols", "http/1.1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("at its end: %v\n%s", err, stderr.Bytes())
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line)
	ca, err := os.ReadFile(trust)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("no certificate in %q", ca)
	}
	tr := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: host, ClientSessionCache: tls.NewLRUClientSessionCache(1)},
		DisableKeepAlives: true,
	}
	for range 2 {
		resp, err := (&http.Client{Transport: tr}).Do(&http.Request{Method: "GET", URL: &url.URL{Scheme: "https", Host: addr, Path: "/x"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "3" {
			t.Errorf("got %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
		}
	}
	l, err := ReadLog(socket)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Requests) != 2 || len(l.Connections) != 2 || l.Connections[0].Resumed || !l.Connections[1].Resumed {
		t.Errorf("got log %+v, want two connections, the second resumed, with a request each", l)
	}
}
