// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	utls "github.com/bogdanfinn/utls"
	"golang.org/x/sys/unix"
)

// Kind is how Start came out.
type Kind uint8

// Kinds.
const (
	// OK: both handshakes are done; Client and Up carry plaintext.
	OK Kind = iota
	// BadCertificate: the origin's certificate is not good for the name. The
	// client was told by a fatal alert and its connection closed.
	BadCertificate
	// ShapeLost: the handshake with the origin failed for a reason of its own,
	// and nothing was said to the client, whose descriptor is in ClientRaw. It
	// is to be passed through on a new connection to the origin. Plan will
	// refuse its like for a while.
	ShapeLost
	// UpstreamFailed: the connection to the origin broke during the handshake.
	// Nothing was said to the client, whose descriptor is in ClientRaw.
	UpstreamFailed
	// ClientFailed: the client did not finish its handshake; everything is
	// closed. If it did not take the certificate, Plan will refuse its like for
	// a while with WhyUntrusted.
	ClientFailed
	// Failed: something here failed, such as a limit of the process;
	// everything is closed.
	Failed
)

// String is the name of k as metrics and logs show it.
func (k Kind) String() string {
	switch k {
	case OK:
		return "ok"
	case BadCertificate:
		return "bad_certificate"
	case ShapeLost:
		return "shape_lost"
	case UpstreamFailed:
		return "upstream_failed"
	case ClientFailed:
		return "client_failed"
	}
	return "failed"
}

// Result is what became of a Start.
type Result struct {
	Kind Kind
	// Client and Up are ends of socket pairs with the plaintext of the client
	// and of the origin: non-blocking, owned by who gets the result. -1 unless
	// Kind is OK.
	Client, Up int
	// ClientRaw is the client's connection as Start got it, the ClientHello
	// still the only thing read of it, owned by who gets the result. -1 unless
	// Kind is ShapeLost or UpstreamFailed.
	ClientRaw int
	ALPN      string   // the protocol that the origin chose; "" for none
	Version   uint16   // of TLS, with both
	Session   *Session // nil unless Kind is OK
	Why       string   // one of the Why constants if Kind is ShapeLost; or ""
	Err       error    // nil if Kind is OK
}

// Start terminates the connection that p was made for. It takes over two
// connected TCP sockets, both non-blocking: client, of which first was read
// already and nothing written to, and up, freshly connected to the origin. They
// are its own from the call on. first is what p was made of.
//
// done is called once, from another goroutine, and must not block: bytes move
// once it has returned.
func (t *Terminator) Start(p *Plan, client, up int, first []byte, done func(Result)) {
	s := &Session{}
	if !t.begin(s) {
		_ = unix.Close(up)
		go done(Result{
			Kind: ShapeLost, Client: -1, Up: -1, ClientRaw: client,
			Why: WhyStopped, Err: errors.New("the terminator is closed"),
		})
		return
	}
	go func() {
		defer t.end(s)
		r := t.handshakes(s, p, client, up, first)
		if r.Kind != OK {
			r.Client, r.Up, r.Session = -1, -1, nil
			t.log.Debug("not terminated", "name", p.name, "kind", r.Kind.String(), "why", r.Why, "err", r.Err)
			done(r)
			return
		}
		done(r)
		s.run()
	}()
}

// run moves bytes until both peers are done.
func (s *Session) run() {
	origin := make(chan struct{})
	go func() {
		defer close(origin)
		s.origin.run()
	}()
	s.client.run()
	<-origin
}

// handshakes makes both, the origin's first.
func (t *Terminator) handshakes(s *Session, p *Plan, client, up int, first []byte) Result {
	raw := client // closed here unless it is handed back or taken over
	defer func() {
		if raw >= 0 {
			_ = unix.Close(raw)
		}
	}()
	back := func(kind Kind, why string, err error) Result {
		r := Result{Kind: kind, ClientRaw: raw, Why: why, Err: err}
		raw = -1
		return r
	}
	deadline := time.Now().Add(t.limit)
	conn, err := fileConn(up)
	if err != nil {
		return back(UpstreamFailed, "", err)
	}
	origin := &half{wire: &stream{Conn: conn, stall: t.stall}}
	ok := false
	defer func() {
		if !ok {
			_ = origin.wire.Close()
		}
	}()
	if !s.change(func() { s.origin = origin }) {
		return back(ShapeLost, WhyStopped, errGone)
	}
	u, why, err := t.shakeOrigin(p, origin.wire, deadline)
	var bad *badCertificate
	switch {
	case errors.As(err, &bad):
		t.warn(raw, bad.alert)
		return Result{Kind: BadCertificate, ClientRaw: -1, Err: err}
	case why == WhyOrigin && broken(err):
		t.memory.strike(p.key, WhyOrigin)
		return back(UpstreamFailed, "", err)
	case err != nil:
		t.memory.refuse(p.key, why)
		return back(ShapeLost, why, err)
	}
	state := u.ConnectionState()
	if !p.hello.answerable(state.Version) {
		t.memory.refuse(p.key, WhyVersion)
		return back(ShapeLost, WhyVersion, fmt.Errorf("the origin chose %s", tls.VersionName(state.Version)))
	}
	leaf, err := t.ca.Leaf(p.name)
	if err != nil {
		return back(ShapeLost, whyLeaf, err)
	}

	fd := raw
	raw = -1
	conn, err = fileConn(fd)
	if err != nil {
		return Result{Kind: Failed, ClientRaw: -1, Err: err}
	}
	answered := &half{wire: &stream{Conn: conn, first: first, stall: t.stall}}
	defer func() {
		if !ok {
			_ = answered.wire.Close()
		}
	}()
	if !s.change(func() { s.client = answered }) {
		return Result{Kind: Failed, ClientRaw: -1, Err: errGone}
	}
	c, err := t.shakeClient(answered.wire, leaf, state.NegotiatedProtocol, state.Version, deadline)
	if err != nil {
		t.blame(p, answered.wire, err)
		return Result{Kind: ClientFailed, ClientRaw: -1, Err: fmt.Errorf("handshake with the client: %w", err)}
	}
	answered.silent = func() { t.memory.strike(p.key, WhyUntrusted) }
	answered.spoke = func() { t.memory.good(p.key) }
	// It may ask for a certificate of the client even now (RFC 8446 §4.6.2).
	origin.failed = func() { t.memory.refuse(p.key, WhyOrigin) }
	r := Result{Kind: OK, ALPN: state.NegotiatedProtocol, Version: state.Version, Session: s, ClientRaw: -1}
	if err := s.join(origin, u, answered, c, &r); err != nil {
		return Result{Kind: Failed, ClientRaw: -1, Err: err}
	}
	ok = true
	return r
}

// join gives both halves their socket pairs.
func (s *Session) join(origin *half, u tlsConn, client *half, c tlsConn, r *Result) error {
	up, upFD, err := newPair()
	if err != nil {
		return err
	}
	down, downFD, err := newPair()
	if err != nil {
		_ = up.Close()
		_ = unix.Close(upFD)
		return err
	}
	if !s.change(func() {
		origin.tls, origin.local, origin.other = u, up, client
		client.tls, client.local, client.other = c, down, origin
		origin.wire.local, client.wire.local = up, down
	}) {
		_ = up.Close()
		_ = down.Close()
		_ = unix.Close(upFD)
		_ = unix.Close(downFD)
		return errGone
	}
	for _, h := range []*half{origin, client} {
		if err := h.wire.SetDeadline(time.Time{}); err != nil {
			// It was closed meanwhile: moving bytes will find out.
			continue
		}
	}
	r.Client, r.Up = downFD, upFD
	return nil
}

// badCertificate is an error of the origin's certificate.
type badCertificate struct {
	err   error
	alert byte
}

func (e *badCertificate) Error() string { return e.err.Error() }
func (e *badCertificate) Unwrap() error { return e.err }

// shakeOrigin makes the handshake with the origin. why says what is remembered
// of a failure.
func (t *Terminator) shakeOrigin(p *Plan, wire *stream, deadline time.Time) (u *utls.UConn, why string, err error) {
	var refused error
	asked := false
	cfg := &utls.Config{
		// VerifyConnection does it, with the wall clock and the roots of here.
		InsecureSkipVerify: true,
		VerifyConnection: func(state utls.ConnectionState) error {
			refused = verify(state.PeerCertificates, p.name, t.roots, t.ca.Certificate(), t.now())
			return refused
		},
		// Only the client could answer that.
		GetClientCertificate: func(*utls.CertificateRequestInfo) (*utls.Certificate, error) {
			asked = true
			return nil, errors.New("the origin asks for a certificate of the client")
		},
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
	below := &helloConn{Conn: wire, hello: p.hello}
	if p.hello.has(extECH) {
		below.witness = &echWitness{}
		cfg.KeyLogWriter = below.witness
		defer below.witness.forget()
	}
	u, err = newOrigin(below, cfg)
	if err != nil {
		return nil, WhyShape, err
	}
	if err := wire.SetDeadline(deadline); err != nil {
		return nil, WhyOrigin, fmt.Errorf("handshake with the origin: %w", err)
	}
	err = handshake(u)
	var name x509.HostnameError
	switch {
	case err == nil && below.witness != nil && below.witness.answered():
		return nil, WhyECH, errECH
	case err == nil:
		below.witness = nil
		return u, "", nil
	case refused != nil && !p.sni && errors.As(refused, &name):
		// The client may have a name in mind that it did not say.
		return nil, WhyName, refused
	case refused != nil:
		return nil, "", &badCertificate{refused, alertFor(refused)}
	case asked:
		return nil, WhyClientCert, err
	}
	return nil, WhyOrigin, fmt.Errorf("handshake with the origin: %w", err)
}

// handshake is that of u, whose library asserts by panicking.
func handshake(u *utls.UConn) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errShape, r)
		}
	}()
	return u.Handshake()
}

// broken reports whether err is one of the connection and not of TLS.
func broken(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op != "remote error" && op.Op != "local error"
	}
	return errors.Is(err, errCut)
}

// shakeClient answers the client. The versions and protocols offered are those
// that the origin chose, so that the client is told the truth about both.
func (t *Terminator) shakeClient(wire *stream, leaf *tls.Certificate, alpn string, version uint16, deadline time.Time) (*tls.Conn, error) {
	cfg := &tls.Config{
		Certificates: []tls.Certificate{*leaf},
		MinVersion:   version,
		MaxVersion:   version,
		// A ticket of here could not be resumed at the origin.
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		Time:                        t.now,
	}
	if alpn != "" {
		cfg.NextProtos = []string{alpn}
	}
	if err := wire.SetDeadline(deadline); err != nil {
		return nil, err
	}
	c := tls.Server(wire, cfg)
	return c, c.Handshake()
}

// blame remembers what a failed handshake with the client tells. An alert is
// the client's own word. An end without one may be that of a client that was
// stopped.
func (t *Terminator) blame(p *Plan, wire *stream, err error) {
	var op *net.OpError
	switch {
	case wire.alerted(), errors.As(err, &op) && op.Op == "remote error":
		t.memory.refuse(p.key, WhyUntrusted)
	case broken(err):
		t.memory.strike(p.key, WhyUntrusted)
	default:
		t.memory.refuse(p.key, WhySuites)
	}
}

// warnTime is how long a client that was told of a bad certificate may take to
// go: to close at once could reset what it was told.
const warnTime = 2 * time.Second

// warn sends the client a fatal alert in plaintext, as before a ServerHello,
// and waits a moment for it to close. It leaves the descriptor open.
func (t *Terminator) warn(client int, alert byte) {
	dup, err := unix.FcntlInt(uintptr(client), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	conn, err := fileConn(dup)
	if err != nil {
		return
	}
	wire := &stream{Conn: conn}
	defer wire.Close()
	if wire.SetDeadline(time.Now().Add(warnTime)) != nil {
		return
	}
	if _, err := wire.Write([]byte{recordAlert, 3, 3, 0, 2, 2, alert}); err != nil {
		return
	}
	if wire.finish() != nil {
		return
	}
	buf := make([]byte, 1024)
	for range 64 {
		if _, err := wire.Read(buf); err != nil {
			return
		}
	}
}
