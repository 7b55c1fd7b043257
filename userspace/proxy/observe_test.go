// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/keylog"
	"github.com/egressd/egressd/userspace/mono"
)

// logged is a source of keys, as processes of a test write them.
type logged struct {
	*keylog.Store
	w       io.Writer
	expects bool
}

func newLogged(t testing.TB) *logged {
	s := keylog.NewStore(keylog.Config{})
	w := s.Writer()
	t.Cleanup(func() { w.Close() })
	return &logged{Store: s, w: w, expects: true}
}

func (k *logged) Ready() bool { return true }

func (k *logged) Expects(uint32) bool { return k.expects }

// observing is start for budgets whose connections may be read with keys.
func observing(t testing.TB, k Keys, budgets ...*policy.Budget) *bench {
	for _, b := range budgets {
		b.TLS = policy.Observe
	}
	return startWith(t, Config{Keys: k}, 0, budgets...)
}

// tlsOrigin is an HTTPS origin of any behaviour.
func tlsOrigin(t testing.TB, h2 bool, serve http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := httptest.NewUnstartedServer(serve)
	s.EnableHTTP2 = h2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// echoBody answers with the body of the request.
func echoBody(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = w.Write(body)
}

// tlsClient is an HTTP client through b that logs its keys to w.
func tlsClient(b *bench, dest netip.AddrPort, h2 bool, w io.Writer) *http.Client {
	tr := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return b.connect(dest), nil },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, KeyLogWriter: w, MaxVersion: 0},
		ForceAttemptHTTP2: h2,
	}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func get(t testing.TB, c *http.Client, url string) int {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// laneOf is the only lane of a budget.
func laneOf(t testing.TB, b *bench, name string) *policy.Lane {
	t.Helper()
	var found *policy.Lane
	for _, l := range b.engine.Lanes() {
		if l.Key.Budget == name {
			if found != nil {
				t.Fatalf("two lanes of %s", name)
			}
			found = l
		}
	}
	if found == nil {
		t.Fatalf("no lane of %s", name)
	}
	return found
}

// Requests that are read are counted each, in both versions of HTTP and of TLS,
// one after the other and side by side.
func TestReadCountsRequests(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(fmt.Sprint(h2, tls.VersionName(version)), func(t *testing.T) {
				dest := tlsOrigin(t, h2, echoBody)
				k := newLogged(t)
				b := observing(t, k, budget("origin.test", plenty))
				client := tlsClient(b, dest, h2, k.w)
				client.Transport.(*http.Transport).TLSClientConfig.MaxVersion = version
				for i := range 20 {
					body := strings.Repeat("x", i*4000)
					resp, err := client.Post("https://origin.test/echo", "text/plain", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					if got, err := io.ReadAll(resp.Body); err != nil || string(got) != body {
						t.Fatalf("request %d: %d bytes back of %d, %v", i, len(got), len(body), err)
					}
					resp.Body.Close()
				}
				var g errgroup.Group
				for range 30 {
					g.Go(func() error {
						resp, err := client.Get("https://origin.test/side")
						if err == nil {
							_, err = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
						return err
					})
				}
				if err := g.Wait(); err != nil {
					t.Fatal(err)
				}
				lane := laneOf(t, b, "test")
				if got := lane.Cell.Granted.Load(); got != 50 {
					t.Errorf("%d units for 50 requests", got)
				}
				waitFor(t, "all answers to be read", func() bool { return lane.InFlight.Load() == 0 })
				n := b.Insight().Counts()
				if got := n.Answers[policy.SightKeys]; got != 50 {
					t.Errorf("%d answers seen of 50", got)
				}
				for d, count := range n.Doubts {
					if count > 0 {
						t.Errorf("%d connections in doubt: %v", count, d)
					}
				}
				if codes := lane.Tally.Codes(); codes[200] != 50 {
					t.Errorf("codes = %v, want 50 of 200", codes)
				}
			})
		}
	}
}

// The requests of one connection are held each until it may go; what leaves is
// within the budget on the origin's own log.
func TestReadPaces(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			s := newSecret(t, h2, "answer")
			k := newLogged(t)
			b := observing(t, k, budget("origin.test", perSecond(10)))
			client := tlsClient(b, s.dest(), h2, k.w)
			var g errgroup.Group
			for range 12 {
				g.Go(func() error {
					resp, err := client.Get("https://origin.test/")
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			at := s.times()
			if got := at[len(at)-1].Sub(at[0]); len(at) != 12 || got < 900*time.Millisecond {
				t.Errorf("%d requests at 10/s within %v", len(at), got)
			}
			if got := laneOf(t, b, "test").Cell.Granted.Load(); got != 12 {
				t.Errorf("%d units for 12 requests", got)
			}
		})
	}
}

// A 429 inside TLS closes the lane for the time that it asks for, whoever comes
// next and on whatever connection.
func TestReadVerdict(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			var mu sync.Mutex
			var at []time.Time
			dest := tlsOrigin(t, h2, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				at = append(at, time.Now())
				first := len(at) == 1
				mu.Unlock()
				if first {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusTooManyRequests)
				}
			})
			k := newLogged(t)
			b := observing(t, k, budget("origin.test", plenty))
			client := tlsClient(b, dest, h2, k.w)
			if got := get(t, client, "https://origin.test/"); got != 429 {
				t.Fatalf("status %d", got)
			}
			// At once, on the same connection and on another.
			other := tlsClient(b, dest, h2, k.w)
			var g errgroup.Group
			for _, c := range []*http.Client{client, other} {
				g.Go(func() error {
					resp, err := c.Get("https://origin.test/")
					if err == nil {
						resp.Body.Close()
					}
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			for _, next := range at[1:] {
				if d := next.Sub(at[0]); d < time.Second-20*time.Millisecond {
					t.Errorf("a request %v after a 429 that asked for 1s", d)
				}
			}
			if got := laneOf(t, b, "test").Cell.Limited.Load(); got != 1 {
				t.Errorf("%d limits noted, want 1", got)
			}
		})
	}
}

// Methods and paths in matches hold for what is read, the first request of a
// connection included.
func TestReadMatches(t *testing.T) {
	dest := tlsOrigin(t, true, func(http.ResponseWriter, *http.Request) {})
	k := newLogged(t)
	api := budget("origin.test", plenty)
	api.Name, api.Match.Path, api.Match.Methods = "api", "/api/", []string{"GET"}
	all := budget("origin.test", plenty)
	all.Name, all.Per = "all", policy.PerExit
	b := observing(t, k, api, all)
	for _, h2 := range []bool{false, true} {
		client := tlsClient(b, dest, h2, k.w)
		for _, path := range []string{"/api/1?secret=x", "/img/1", "/api/2"} {
			get(t, client, "https://origin.test"+path)
			resp, err := client.Post("https://origin.test"+path, "text/plain", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	if got := laneOf(t, b, "api").Cell.Granted.Load(); got != 4 {
		t.Errorf("%d units of the budget for GET /api/, want 4", got)
	}
	if got := laneOf(t, b, "all").Cell.Granted.Load(); got != 12 {
		t.Errorf("%d units of the budget for all, want 12", got)
	}
}

// A request that may not wait ends the connection; one that waits does not hold
// up what the server sends; a client that goes leaves its place.
func TestReadHeld(t *testing.T) {
	s := newSecret(t, false, "answer")
	say := func(c *tls.Conn) { mustWrite(t, c, "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n") }
	k := newLogged(t)
	open := func(b *bench) (*tls.Conn, *net.TCPConn) {
		raw := b.connect(s.dest())
		return tls.Client(raw, &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true, KeyLogWriter: k.w}), raw
	}
	head := make([]byte, 12)
	b := observing(t, k, budget("origin.test", policy.Rate{Count: 1, Every: time.Hour}))
	c, _ := open(b)
	say(c)
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 200" {
		t.Fatalf("first answer %q, %v", head, err)
	}
	say(c)
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a request that would wait an hour: %v, want a reset", err)
	}

	waiting := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	waiting.Queue.MaxWait = 2 * time.Hour
	b = observing(t, k, waiting)
	c, raw := open(b)
	say(c)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	before := len(s.times())
	say(c)
	lane := laneOf(t, b, "test")
	waitFor(t, "the request to wait", func() bool { return lane.Waiting.Load() == 1 })
	if n := len(s.times()); n != before {
		t.Errorf("the origin received %d requests while the next was held", n-before)
	}
	raw.Close()
	waitFor(t, "the place to be left", func() bool { return lane.Waiting.Load() == 0 })
	waitFor(t, "the connection to end", func() bool { return b.conns.Load() == 0 })
}

// spoiled is a key log that does with lines what a test wants.
type spoiled func([]byte)

func (f spoiled) Write(b []byte) (int, error) { f(b); return len(b), nil }

// Whatever happens to the keys, traffic flows, and what was not read is counted.
func TestKeysSpoiled(t *testing.T) {
	type testCase struct {
		name   string
		log    func(k *logged) io.Writer
		unsure bool // that the process logs keys
		doubt  policy.Doubt
		seen   bool // in the end
	}
	for _, tc := range []testCase{
		{name: "never", log: func(*logged) io.Writer { return nil }, doubt: policy.DoubtNoKeys},
		{name: "never, nor expected", unsure: true, log: func(*logged) io.Writer { return nil }, doubt: policy.DoubtNoKeys},
		{name: "garbage", log: func(k *logged) io.Writer {
			return spoiled(func(b []byte) { _, _ = k.w.Write(bytes.ToUpper(bytes.ReplaceAll(b, []byte(" "), []byte("\x00")))) })
		}, doubt: policy.DoubtNoKeys},
		{name: "wrong secrets", log: func(k *logged) io.Writer {
			return spoiled(func(b []byte) {
				f := strings.Fields(string(b))
				secret := make([]byte, len(f[2])/2)
				_, _ = rand.Read(secret)
				_, _ = fmt.Fprintf(k.w, "%s %s %x\n", f[0], f[1], secret)
			})
		}, doubt: policy.DoubtUndecided},
		{name: "of another session", log: func(k *logged) io.Writer {
			return spoiled(func(b []byte) {
				f := strings.Fields(string(b))
				_, _ = fmt.Fprintf(k.w, "%s %064x %s\n", f[0], 7, f[2])
			})
		}, doubt: policy.DoubtNoKeys},
		{name: "late", unsure: true, log: func(k *logged) io.Writer {
			return spoiled(func(b []byte) {
				line := bytes.Clone(b)
				time.AfterFunc(300*time.Millisecond, func() { _, _ = k.w.Write(line) })
			})
		}, seen: true},
		{name: "late, though expected", log: func(k *logged) io.Writer {
			return spoiled(func(b []byte) {
				line := bytes.Clone(b)
				time.AfterFunc(300*time.Millisecond, func() { _, _ = k.w.Write(line) })
			})
		}, seen: true},
		{name: "in time, not expected", unsure: true, log: func(k *logged) io.Writer { return k.w }, seen: true},
	} {
		for _, h2 := range []bool{false, true} {
			t.Run(tc.name+", HTTP/2 "+strconv.FormatBool(h2), func(t *testing.T) {
				t.Parallel()
				dest := tlsOrigin(t, h2, echoBody)
				k := newLogged(t)
				k.expects = !tc.unsure
				b := observing(t, k, budget("origin.test", plenty))
				client := tlsClient(b, dest, h2, tc.log(k))
				body := strings.Repeat("x", 5000)
				for i := range 30 {
					resp, err := client.Post("https://origin.test/", "text/plain", strings.NewReader(body))
					if err != nil {
						t.Fatalf("request %d: %v", i, err)
					}
					if got, err := io.ReadAll(resp.Body); err != nil || string(got) != body {
						t.Fatalf("request %d: %d bytes, %v", i, len(got), err)
					}
					resp.Body.Close()
					time.Sleep(20 * time.Millisecond)
				}
				if tc.seen {
					defer func() {
						if t.Failed() {
							t.Logf("%+v", b.Insight().Counts())
						}
					}()
					waitFor(t, "answers to be read", func() bool {
						n := b.Insight().Counts()
						return n.Answers[policy.SightKeys] == 30 && n.Open[policy.SightKeys] == 1
					})
					return
				}
				waitFor(t, "the doubt to be counted", func() bool {
					n := b.Insight().Counts()
					return n.Doubts[tc.doubt] == 1 && n.Open[policy.SightBlind] == 1
				})
				if got := b.Insight().Counts().Answers[policy.SightKeys]; got != 0 {
					t.Errorf("%d answers seen", got)
				}
			})
		}
	}
}

// What is no HTTP inside TLS, or stops being HTTP, passes untouched.
func TestReadOtherProtocols(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	certs := cert.TLS.Certificates
	cert.Close()
	echo := func(t *testing.T) netip.AddrPort {
		return origin(t, func(raw *net.TCPConn) {
			c := tls.Server(raw, &tls.Config{Certificates: certs})
			_, _ = io.Copy(c, c)
			_ = c.CloseWrite()
		})
	}
	for name, say := range map[string]string{
		"binary":    strings.Repeat("\x00\x01\x02\xff", 10_000),
		"text":      "HELO there\r\n" + strings.Repeat("and so on\r\n", 5000),
		"like HTTP": "GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + strings.Repeat("z", 50_000),
		"preface":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 50_000),
	} {
		t.Run(name, func(t *testing.T) {
			k := newLogged(t)
			b := observing(t, k, budget("origin.test", plenty))
			c := tls.Client(b.connect(echo(t)), &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true, KeyLogWriter: k.w})
			go func() {
				_, _ = io.WriteString(c, say)
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || string(got) != say {
				t.Errorf("%d bytes came back of %d, %v", len(got), len(say), err)
			}
			if n := b.Insight().Counts().Doubts[policy.DoubtHTTP]; n != 1 {
				t.Errorf("%d in doubt, want 1", n)
			}
		})
	}
	t.Run("upgrade", func(t *testing.T) {
		dest := tlsOrigin(t, false, func(w http.ResponseWriter, r *http.Request) {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(c, rw)
		})
		k := newLogged(t)
		rule := budget("origin.test", plenty)
		rule.Concurrency = 5
		b := observing(t, k, rule)
		c := tls.Client(b.connect(dest), &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true, KeyLogWriter: k.w})
		mustWrite(t, c, "GET / HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		head := make([]byte, len("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatal(err)
		}
		text := bytes.Repeat([]byte("\x00GET / HTTP/1.1\r\n\r\n"), 20_000)
		go func() { _, _ = c.Write(text) }()
		back := make([]byte, len(text))
		if _, err := io.ReadFull(c, back); err != nil || !bytes.Equal(back, text) {
			t.Errorf("what came back is not what was sent: %v", err)
		}
		lane := laneOf(t, b, "test")
		if got := lane.Cell.Granted.Load(); got != 1 {
			t.Errorf("%d units for one request and a tunnel", got)
		}
		if got := lane.InFlight.Load(); got != 1 {
			t.Errorf("%d under way while the tunnel is open", got)
		}
	})
}

// Bulk passes whole in both directions, and is read to its end.
func TestReadBulk(t *testing.T) {
	const size = 24 << 20
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			dest := tlsOrigin(t, h2, func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/length" {
					w.Header().Set("Content-Length", strconv.Itoa(size))
				}
				w.Header().Set("X-Got", strconv.FormatInt(n, 10))
				_, _ = io.Copy(w, io.LimitReader(zeros{}, size))
			})
			k := newLogged(t)
			b := observing(t, k, budget("origin.test", plenty))
			client := tlsClient(b, dest, h2, k.w)
			for _, path := range []string{"/length", "/chunked", "/length"} {
				resp, err := client.Post("https://origin.test"+path, "text/plain", io.LimitReader(zeros{}, size))
				if err != nil {
					t.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || n != size || resp.Header.Get("X-Got") != strconv.Itoa(size) {
					t.Errorf("%s: %d bytes down, %s up, %v", path, n, resp.Header.Get("X-Got"), err)
				}
			}
			n := b.Insight().Counts()
			if n.Answers[policy.SightKeys] != 3 || n.Open[policy.SightKeys] != 1 {
				t.Errorf("answers %v, open %v, doubts %v", n.Answers, n.Open, n.Doubts)
			}
			waitFor(t, "all copies to be read", func() bool { return b.copied.Load() == 0 })
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Where copies come faster than they can be read, they are dropped, and the
// traffic is not.
func TestReadQueueFull(t *testing.T) {
	dest := tlsOrigin(t, false, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 8<<20))
	})
	k := newLogged(t)
	b := observing(t, k, budget("origin.test", plenty))
	b.maxConnCopies = 1000 // less than one read
	client := tlsClient(b, dest, false, k.w)
	for range 3 {
		resp, err := client.Get("https://origin.test/")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 8<<20 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		resp.Body.Close()
	}
	waitFor(t, "the doubt to be counted", func() bool { return b.Insight().Counts().Doubts[policy.DoubtQueueFull] == 1 })
	if got := b.copied.Load(); got != 0 {
		t.Errorf("%d bytes of copies are kept", got)
	}
}

// A client that closes in the middle of a record, and one that is reset, leave
// nothing behind.
func TestReadCutOff(t *testing.T) {
	dest := tlsOrigin(t, false, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	k := newLogged(t)
	b := observing(t, k, budget("origin.test", plenty))
	for i := range 20 {
		raw := b.connect(dest)
		cut := &cutting{Conn: raw, left: 1 << 30}
		c := tls.Client(cut, &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true, KeyLogWriter: k.w})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		cut.left = 10 + i*7
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 5000))
		if i%2 == 0 {
			_ = raw.SetLinger(0)
		}
		raw.Close()
	}
	waitFor(t, "the connections to end", func() bool { return b.conns.Load() == 0 })
	for _, l := range b.engine.Lanes() {
		if n := l.InFlight.Load(); n != 0 {
			t.Errorf("%d under way in %s", n, l.ID())
		}
	}
	n := b.Insight().Counts()
	for s, open := range n.Open {
		if open != 0 {
			t.Errorf("%d connections open by %v", open, s)
		}
	}
}

// cutting is a connection that ends after so many bytes written.
type cutting struct {
	net.Conn
	left int
}

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) > c.left {
		n, _ := c.Conn.Write(b[:c.left])
		c.left = 0
		return n, io.ErrClosedPipe
	}
	c.left -= len(b)
	return c.Conn.Write(b)
}

// The places of a budget are those of requests that are under way.
func TestReadPlaces(t *testing.T) {
	release := make(chan struct{})
	var under, most int
	var mu sync.Mutex
	dest := tlsOrigin(t, true, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		<-release
		mu.Lock()
		under--
		mu.Unlock()
	})
	k := newLogged(t)
	rule := budget("origin.test", plenty)
	rule.Concurrency = 3
	b := observing(t, k, rule)
	client := tlsClient(b, dest, true, k.w)
	var g errgroup.Group
	for range 10 {
		g.Go(func() error {
			resp, err := client.Get("https://origin.test/")
			if err == nil {
				resp.Body.Close()
			}
			return err
		})
	}
	waitFor(t, "three to be under way", func() bool { mu.Lock(); defer mu.Unlock(); return under == 3 })
	close(release)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if most > 3 {
		t.Errorf("%d requests under way at once, of 3", most)
	}
}

// Requests that share a record leave together and are each counted: later ones
// wait for what the lane did not have. A lane that probes is no reason to wait for
// each other.
func TestReadTogether(t *testing.T) {
	for _, probing := range []bool{false, true} {
		t.Run(fmt.Sprint("probing ", probing), func(t *testing.T) {
			s := newSecret(t, false, "answer")
			k := newLogged(t)
			rule := budget("origin.test", perSecond(5))
			rule.Concurrency = 1
			b := observing(t, k, rule)
			c := tls.Client(b.connect(s.dest()), &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true, KeyLogWriter: k.w})
			ask := "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n"
			in := bufio.NewReader(c)
			answers := func(n int) {
				t.Helper()
				for range n {
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			}
			mustWrite(t, c, ask)
			answers(1)
			lane := laneOf(t, b, "test")
			if probing {
				lane.Cell.Penalize(mono.Now(), lane.Cell.Epoch.Load(), mono.Now().Add(100*time.Millisecond), 1, time.Second)
			}
			mustWrite(t, c, ask+ask+ask+ask)
			answers(4)
			if got := lane.Cell.Granted.Load(); got != 5 {
				t.Errorf("%d units for 5 requests", got)
			}
			if got := b.Insight().Counts().Shared; got != 3 {
				t.Errorf("%d counted as having shared a record, want 3", got)
			}
			begun := time.Now()
			mustWrite(t, c, ask)
			answers(1)
			if d := time.Since(begun); d < 400*time.Millisecond {
				t.Errorf("the next went after %v, with three units owed at 5/s", d)
			}
		})
	}
}

// A process that was expected to log its keys and does not has each of its
// flights paced, the first included.
func TestKeysPromised(t *testing.T) {
	s := newSecret(t, false, "answer")
	k := newLogged(t)
	b := observing(t, k, budget("origin.test", plenty))
	for range 3 {
		client := tlsClient(b, s.dest(), false, nil)
		for range 2 {
			get(t, client, "https://origin.test/")
		}
	}
	if got := laneOf(t, b, "test").Cell.Granted.Load(); got != 6 {
		t.Errorf("%d units for 6 requests on 3 connections", got)
	}
}
