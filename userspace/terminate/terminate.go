// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Config is what a Terminator needs.
type Config struct {
	// CA signs what clients are shown. nil: nothing is terminated.
	CA *Authority
	// Roots are those that origins are verified against. nil: the system's, and
	// ExtraRoots.
	Roots *x509.CertPool
	// ExtraRoots are certificates in PEM that count beside the system's.
	ExtraRoots []byte
	// Logger is told of what goes wrong. nil: nobody is.
	Logger *slog.Logger
	// HandshakeTime is how long both handshakes of a connection may take
	// together. 0: 30 s.
	HandshakeTime time.Duration
	// Now is the wall clock, for certificates. nil: time.Now.
	Now func() time.Time
}

// Terminator terminates connections. It is safe for concurrent use.
type Terminator struct {
	ca     *Authority
	roots  *x509.CertPool
	log    *slog.Logger
	limit  time.Duration
	now    func() time.Time
	memory memory
	stall  time.Duration // as stallTime; shorter in tests

	mu      sync.Mutex
	running map[*Session]struct{}
	closed  bool
	tasks   sync.WaitGroup
}

// ErrKeyLog says that the process has SSLKEYLOGFILE in its environment: the
// library that speaks to origins would write every connection's keys there.
var ErrKeyLog = errors.New("SSLKEYLOGFILE is set, by which the keys of origins' connections would be written to a file: unset it")

// New makes a Terminator. It reads the certificates of the system, unless it
// is given roots.
func New(cfg Config) (*Terminator, error) {
	if os.Getenv("SSLKEYLOGFILE") != "" {
		return nil, ErrKeyLog
	}
	t := &Terminator{
		ca: cfg.CA, roots: cfg.Roots, log: cfg.Logger, limit: cfg.HandshakeTime, now: cfg.Now,
		running: make(map[*Session]struct{}), stall: stallTime,
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.limit <= 0 {
		t.limit = 30 * time.Second
	}
	if t.now == nil {
		t.now = time.Now
	}
	t.memory.now = t.now
	if t.roots == nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("read the system's certificates: %w", err)
		}
		if len(cfg.ExtraRoots) > 0 && !roots.AppendCertsFromPEM(cfg.ExtraRoots) {
			return nil, errors.New("no certificate in the additional roots")
		}
		t.roots = roots
	}
	return t, nil
}

// Close ends every connection and waits until that is done. Plans that are
// started later are answered with their descriptors handed back.
func (t *Terminator) Close() {
	t.mu.Lock()
	t.closed = true
	for s := range t.running {
		s.kill()
	}
	t.mu.Unlock()
	t.tasks.Wait()
}

// begin counts s as running; false if the terminator is closed.
func (t *Terminator) begin(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.running[s] = struct{}{}
	t.tasks.Add(1)
	return true
}

// end is the other end of begin.
func (t *Terminator) end(s *Session) {
	t.mu.Lock()
	delete(t.running, s)
	t.mu.Unlock()
	t.tasks.Done()
}

// Running is the number of connections that are terminated now.
func (t *Terminator) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running)
}
