// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/egressd/egressd/userspace/mono"
)

// Config says what an origin is like.
type Config struct {
	Certificate tls.Certificate
	// Protocols are what it agrees to by ALPN. Nil means h2 and http/1.1.
	Protocols []string
	// Rate is how many requests a second a client, told by its address, is
	// allowed, without any burst. 0 means no limit.
	Rate float64
	// Tell has every answer tell of the limit in X-RateLimit-* fields.
	Tell bool
	// NoTickets keeps clients from resuming sessions: each of their
	// ClientHellos is then that of a first connection.
	NoTickets bool
	// MaxVersion is the highest version of TLS, 0 for the highest there is.
	MaxVersion uint16
	// Forced are answers that requests get whatever the limit is.
	Forced []Forced
	// Pages are bodies by path, of type text/html, which are not limited.
	Pages map[string]string
}

// Forced is the answer to every request of a path, without its query.
type Forced struct {
	Path       string `json:"path"`
	Status     int    `json:"status"`
	RetryAfter string `json:"retry_after"`
}

// Origin serves HTTPS by HTTP/1.1 and HTTP/2, and remembers. Safe for
// concurrent use.
type Origin struct {
	config  Config
	tls     *tls.Config
	clock   mono.Clock
	limiter limiter

	wg     sync.WaitGroup
	mu     sync.Mutex
	log    Log
	open   map[io.Closer]struct{} // listeners and connections
	closed bool
}

// New makes an origin that serves nothing yet.
func New(c Config) (*Origin, error) {
	clock, err := mono.NewClock()
	if err != nil {
		return nil, err
	}
	if c.Protocols == nil {
		c.Protocols = []string{"h2", "http/1.1"}
	}
	o := &Origin{config: c, clock: clock, open: map[io.Closer]struct{}{}}
	if c.Rate > 0 {
		o.limiter = limiter{every: time.Duration(float64(time.Second) / c.Rate), last: map[string]int64{}}
	}
	o.tls = &tls.Config{
		Certificates: []tls.Certificate{c.Certificate}, NextProtos: c.Protocols,
		SessionTicketsDisabled: c.NoTickets, MaxVersion: c.MaxVersion,
	}
	return o, nil
}

// Serve accepts connections until l or the origin is closed. It closes l.
func (o *Origin) Serve(l net.Listener) error {
	if !o.keep(l) {
		return net.ErrClosed
	}
	defer o.drop(l)
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if !o.keep(conn) {
			return net.ErrClosed
		}
		o.wg.Go(func() {
			defer o.drop(conn)
			o.serve(conn)
		})
	}
}

// Close ends listeners and connections and waits for them.
func (o *Origin) Close() error {
	o.mu.Lock()
	o.closed = true
	var errs []error
	for c := range o.open {
		errs = append(errs, c.Close())
	}
	clear(o.open)
	o.mu.Unlock()
	o.wg.Wait()
	return errors.Join(errs...)
}

// keep remembers what Close has to close. If it is too late for that, it closes
// c and says no.
func (o *Origin) keep(c io.Closer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		_ = c.Close() // nothing was sent on it
		return false
	}
	o.open[c] = struct{}{}
	return true
}

func (o *Origin) drop(c io.Closer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, mine := o.open[c]; mine {
		delete(o.open, c)
		_ = c.Close() // what was to be written has been
	}
}

// Log is what the origin has seen so far.
func (o *Origin) Log() Log {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.clone()
}

// WriteLog writes the log as JSON.
func (o *Origin) WriteLog(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(o.Log()); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// link is a connection as its handler has it.
type link struct {
	origin *Origin
	index  int    // in the log
	client string // address
	conn   *tls.Conn
}

// serve serves a connection until its end. The log tells why that came, unless
// the client just closed.
func (o *Origin) serve(raw net.Conn) {
	tapped := &helloTap{Conn: raw}
	client, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
	k := &link{origin: o, client: client, conn: tls.Server(tapped, o.tls)}
	at := int64(o.clock.Now())
	if err := raw.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return
	}
	err := k.conn.Handshake()
	if len(tapped.seen) == 0 {
		return // somebody looked whether a server is here
	}
	if cleared := raw.SetDeadline(time.Time{}); err == nil {
		err = cleared
	}
	entry := Connection{From: raw.RemoteAddr().String(), At: at}
	if hello, bad := tapped.hello(); bad != nil {
		err = errors.Join(err, bad)
	} else {
		entry.SNI, entry.Random = hello.SNI, hex.EncodeToString(hello.Random[:])
		entry.JA3, entry.JA3Hash = hello.JA3()
		entry.JA4, entry.JA4R = hello.JA4()
	}
	if state := k.conn.ConnectionState(); err == nil {
		entry.ALPN, entry.Version, entry.Resumed = state.NegotiatedProtocol, state.Version, state.DidResume
	}
	o.mu.Lock()
	k.index = len(o.log.Connections)
	entry.ID = k.index + 1
	o.log.Connections = append(o.log.Connections, entry)
	o.mu.Unlock()
	switch {
	case err != nil:
	case entry.ALPN == "h2":
		err = k.serveHTTP2()
	default:
		err = k.serveHTTP1()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		k.note(func(c *Connection) { c.Err = err.Error() })
	}
	_ = k.conn.Close() // the client may be gone
}

// note changes the connection's entry in the log.
func (k *link) note(change func(*Connection)) {
	k.origin.mu.Lock()
	defer k.origin.mu.Unlock()
	change(&k.origin.log.Connections[k.index])
}

// answer is the answer to a request.
type answer struct {
	status int
	fields []Field // without pseudo-header fields, names in lower case
	body   string
}

// decide answers a request and writes both down. The request has no
// Connection, Client, Status and RetryAfter yet.
func (k *link) decide(r Request) answer {
	o := k.origin
	r.Connection, r.Client = k.index+1, k.client
	path := r.Path
	query := url.Values{}
	if u, err := url.Parse(r.Path); err == nil {
		path, query = u.Path, u.Query()
	}
	a := answer{status: 200, body: "hello\n"}
	kind := "text/plain"
	if page, ok := o.config.Pages[path]; ok {
		a.body, kind = page, "text/html"
	} else if i := slices.IndexFunc(o.config.Forced, func(f Forced) bool { return f.Path == path }); i >= 0 {
		a.status, r.RetryAfter = o.config.Forced[i].Status, o.config.Forced[i].RetryAfter
	} else if ok, wait := o.limiter.allow(k.client, r.At); !ok {
		a.status = 429
		// Whole seconds, up (RFC 9110 §10.2.3).
		r.RetryAfter = strconv.Itoa(int((wait + time.Second - 1) / time.Second))
	}
	if n, err := strconv.Atoi(query.Get("body")); err == nil && n >= 0 && n <= 1<<20 {
		a.body = string(slices.Repeat([]byte{'x'}, n))
	}
	a.fields = append(a.fields,
		Field{"date", time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")},
		Field{"content-type", kind})
	if r.RetryAfter != "" {
		a.fields = append(a.fields, Field{"retry-after", r.RetryAfter})
	}
	if o.config.Tell && o.config.Rate > 0 {
		a.fields = append(a.fields, Field{"x-ratelimit-limit", strconv.Itoa(int(o.config.Rate))},
			Field{"x-ratelimit-remaining", "0"}, Field{"x-ratelimit-reset", "1"})
	}
	a.fields = append(a.fields, Field{"content-length", strconv.Itoa(len(a.body))})
	r.Status = a.status
	o.mu.Lock()
	o.log.Requests = append(o.log.Requests, r)
	o.mu.Unlock()
	return a
}

// helloTap keeps what a client sends until its ClientHello is complete.
type helloTap struct {
	net.Conn
	seen []byte
	done bool
}

func (t *helloTap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if !t.done {
		t.seen = append(t.seen, b[:n]...)
		message, bad := helloMessage(t.seen)
		t.done = message != nil || bad != nil
	}
	return n, err
}

func (t *helloTap) hello() (*Hello, error) {
	message, err := helloMessage(t.seen)
	if err != nil {
		return nil, err
	}
	return ParseHello(message)
}
