// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/sniff"
)

// originCA signs the certificates of origins in tests.
type originCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newOriginCA(tb testing.TB) *originCA {
	tb.Helper()
	key := mustKey(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origins of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &originCA{cert, key, pool}
}

func mustKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// issue makes a certificate for localhost and 127.0.0.1, changed by change.
func (ca *originCA) issue(tb testing.TB, change func(*x509.Certificate)) tls.Certificate {
	tb.Helper()
	key := mustKey(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// mustAuthority makes an authority in a folder of its own.
func mustAuthority(tb testing.TB, opt AuthorityOptions) (*Authority, string) {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "ca")
	if opt.Host == "" {
		opt.Host = "test"
	}
	ca, err := CreateAuthority(dir, opt)
	if err != nil {
		tb.Fatal(err)
	}
	return ca, dir
}

// relay is a proxy that terminates what it can and passes the rest through, as
// the daemon does.
type relay struct {
	tb     testing.TB
	t      *Terminator
	ca     *Authority
	caFile string
	ln     *net.TCPListener
	origin string
	stall  time.Duration // of the terminator, if set
	host   string        // what the client means, where the hello names none

	tasks  sync.WaitGroup
	mu     sync.Mutex
	firsts [][]byte
	whys   []string
	kinds  []Kind
	last   Result

	// tap, if set, sees the plaintext of the client.
	tap func([]byte)
	// meet, if set, handles the two ends in place of the relay.
	meet func(Result)
}

type relayOption func(*relay, *Config)

// newRelay starts a relay in front of origin, whose certificates roots signed.
func newRelay(tb testing.TB, origin string, roots *x509.CertPool, opts ...relayOption) *relay {
	tb.Helper()
	r := &relay{tb: tb, origin: origin}
	cfg := Config{Roots: roots, HandshakeTime: 10 * time.Second}
	for _, opt := range opts {
		opt(r, &cfg)
	}
	if cfg.CA == nil {
		ca, dir := mustAuthority(tb, AuthorityOptions{})
		cfg.CA, r.caFile = ca, filepath.Join(dir, CertFile)
	}
	r.ca = cfg.CA
	t, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	r.t = t
	if r.stall > 0 {
		t.stall = r.stall
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r.ln = ln.(*net.TCPListener)
	r.tasks.Go(r.accept)
	tb.Cleanup(func() {
		_ = ln.Close()
		t.Close()
		r.tasks.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// trust is a pool of the relay's authority alone.
func (r *relay) trust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(r.ca.Certificate())
	return pool
}

func (r *relay) accept() {
	for {
		c, err := r.ln.AcceptTCP()
		if err != nil {
			return
		}
		r.tasks.Go(func() { r.serve(c) })
	}
}

// mustFD takes the descriptor out of a connection.
func mustFD(tb testing.TB, c *net.TCPConn) int {
	tb.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	fd := -1
	if err := raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		tb.Fatal(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	_ = c.Close()
	return fd
}

// serve handles one client.
func (r *relay) serve(c *net.TCPConn) {
	first, ok := readFirst(c)
	if !ok {
		_ = c.Close()
		return
	}
	r.note(func() { r.firsts = append(r.firsts, first) })
	plan, why := r.t.Plan(first, r.host)
	r.note(func() { r.whys = append(r.whys, why) })
	if plan == nil {
		r.pass(c, first)
		return
	}
	up, err := net.Dial("tcp4", r.origin)
	if err != nil {
		r.tb.Error(err)
		_ = c.Close()
		return
	}
	results := make(chan Result, 1)
	r.t.Start(plan, mustFD(r.tb, c), mustFD(r.tb, up.(*net.TCPConn)), first, func(res Result) { results <- res })
	res := <-results
	r.note(func() {
		r.kinds = append(r.kinds, res.Kind)
		r.last = res
	})
	switch {
	case res.Kind == OK && r.meet != nil:
		r.meet(res)
	case res.Kind == OK:
		r.plain(res)
	case res.ClientRaw >= 0:
		back, err := fileConn(res.ClientRaw)
		if err != nil {
			r.tb.Error(err)
			return
		}
		r.pass(back.(*net.TCPConn), first)
	}
}

func (r *relay) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// seen is what has become of connections so far.
func (r *relay) seen() (whys []string, kinds []Kind, last Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.whys...), append([]Kind(nil), r.kinds...), r.last
}

// sent is what the first client began with.
func (r *relay) sent() []byte {
	r.tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.firsts) == 0 {
		r.tb.Fatal("no client came")
	}
	return r.firsts[0]
}

// waitKinds waits until n connections have come out.
func (r *relay) waitKinds(n int) []Kind {
	r.tb.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, kinds, _ := r.seen(); len(kinds) >= n {
			return kinds
		}
	}
	r.tb.Fatalf("not %d connections came out", n)
	return nil
}

// readFirst reads until the ClientHello is whole.
func readFirst(c net.Conn) ([]byte, bool) {
	var first []byte
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		first = append(first, buf[:n]...)
		switch _, status := sniff.ClientHello(first); {
		case status == sniff.Complete:
			return first, true
		case err != nil, status == sniff.NotTLS:
			return first, len(first) > 0
		}
	}
}

// pass moves the bytes of a client that is passed through.
func (r *relay) pass(c *net.TCPConn, first []byte) {
	up, err := net.Dial("tcp4", r.origin)
	if err != nil {
		_ = c.Close()
		return
	}
	if _, err := up.Write(first); err != nil {
		_ = c.Close()
		_ = up.Close()
		return
	}
	splice(c, up.(*net.TCPConn), nil)
}

// plain moves plaintext between the two ends of a result.
func (r *relay) plain(res Result) {
	client, err := fileConn(res.Client)
	if err != nil {
		r.tb.Error(err)
		return
	}
	up, err := fileConn(res.Up)
	if err != nil {
		r.tb.Error(err)
		return
	}
	splice(client.(*net.UnixConn), up.(*net.UnixConn), r.tap)
}

// halfCloser is a connection whose directions end apart.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// splice copies in both directions until both have ended.
func splice(a, b halfCloser, tap func([]byte)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var from io.Reader = a
		if tap != nil {
			from = io.TeeReader(a, writerFunc(tap))
		}
		_, _ = io.Copy(b, from)
		_ = b.CloseWrite()
	}()
	_, _ = io.Copy(a, b)
	_ = a.CloseWrite()
	<-done
	_ = a.Close()
	_ = b.Close()
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// pemFile writes certificates to a file for clients.
func pemFile(tb testing.TB, certs ...*x509.Certificate) string {
	tb.Helper()
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	path := filepath.Join(tb.TempDir(), "certs.pem")
	if err := os.WriteFile(path, out, 0o644); err != nil {
		tb.Fatal(err)
	}
	return path
}

// writePair writes cert.pem and key.pem to dir.
func writePair(tb testing.TB, dir string, cert tls.Certificate) {
	tb.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		tb.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// freeAddr returns an address of the loopback that was free just now.
func freeAddr(tb testing.TB) string {
	tb.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// mustServe runs a server until the test ends and waits until it listens.
func mustServe(tb testing.TB, addr string, args ...string) {
	tb.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", args[0], err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp4", addr)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%s does not listen: %v", args[0], err)
		}
	}
}

func newDecoder() *hpack.Decoder { return hpack.NewDecoder(65536, nil) }
