// SPDX-License-Identifier: Apache-2.0

// Package proxy is the proxy plane: it accepts the connections that the
// connect hook redirected, finds out what they carry, lets each request
// through its gate, and forwards bytes exactly as they came, in both
// directions, over an upstream connection of its own for each client
// connection.
//
// All connections live on a few event loops, each a goroutine that owns its
// connections and never blocks; nothing else touches a connection. Whoever
// wants something of one posts it to its loop. A loop that would block hangs
// every client on it, and its heartbeat with them: the kernel then stops
// redirecting within a second.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/terminate"
)

// Kernel is what the proxy needs from the kernel side.
type Kernel interface {
	// Take hands over the flow that the connect hook wrote down for the token
	// address local in the namespace. Each flow is handed over once.
	Take(netns uint64, local, remote netip.AddrPort) (policy.Flow, bool)
	// TakeCookie is Take for connections to ::1, which is no token: by the
	// cookie of the client's socket.
	TakeCookie(netns, cookie uint64) (policy.Flow, bool)
	// Beat says that connections are being accepted at now.
	Beat(now ledger.Time)
	// Negative makes connections to dest go untouched until then, so that the
	// next connect() shows the client the true error.
	Negative(netns uint64, dest netip.AddrPort, until ledger.Time) error
}

// Config is what a Proxy is made of. The fields up to Logger are
// required.
type Config struct {
	Engine *policy.Engine
	Gate   *gate.Gate
	Events *events.Log
	Kernel Kernel
	Now    func() ledger.Time
	Logger *slog.Logger

	// Named, if set, is told which label of the policy a destination showed, at
	// the first request of each connection. It is called on the event loops and
	// must not block.
	Named func(dest netip.AddrPort, label string)

	// Keys, if set, is where secrets of TLS sessions come from, for what the
	// policy allows to observe.
	Keys Keys

	// Terminator, if set, gives what ends TLS where the policy allows, or nil. It
	// must not block.
	Terminator func() *terminate.Terminator

	// Probes, if set, are those in clients' processes, for the same.
	Probes Probes

	ListenMark uint32 // SO_MARK of the listeners, by which the connect hook knows them
	Backlog    int    // accept queue of each listener; default 4096
	Loops      int    // event loops; default half the processors, at least one
	MaxConns   int    // client connections at once; default what RLIMIT_NOFILE allows

	// HandshakeTime is how long half a message is waited for that opens a
	// tunnel through a proxy, or answers it; default 30 s.
	HandshakeTime time.Duration

	// ConnectTime is how long a connection to the proxy of a pool's exit may take
	// to stand before another exit is tried; default 5 s.
	ConnectTime time.Duration

	// Hung is called when an event loop has made no turn for some seconds. The
	// default panics: only the end of the process frees the loop's clients.
	Hung func(loop int)
}

// Proxy is the running proxy plane. Its methods are safe for concurrent use.
type Proxy struct {
	cfg      Config
	loops    []*loop
	next     atomic.Uint32 // round robin over loops
	conns    atomic.Int64
	kept     atomic.Int64 // bytes that replays keep
	copied   atomic.Int64 // bytes of copies that are not read yet
	readers  readers
	registry registry
	insight  policy.Insight

	maxConnCopies int
	noPeek        atomic.Bool // sockets cannot be looked into
	maxConns      int64
	closing       atomic.Bool

	mu        sync.Mutex
	listeners []*listener
}

// New makes the event loops; nothing listens yet.
func New(cfg Config) (_ *Proxy, err error) {
	if cfg.Backlog == 0 {
		cfg.Backlog = 4096
	}
	if cfg.Loops == 0 {
		cfg.Loops = max(1, runtime.NumCPU()/2)
	}
	if cfg.HandshakeTime == 0 {
		cfg.HandshakeTime = handshakeTime
	}
	if cfg.ConnectTime == 0 {
		cfg.ConnectTime = connectTime
	}
	if cfg.Hung == nil {
		cfg.Hung = die
	}
	p := &Proxy{cfg: cfg, readers: readers{wake: make(chan struct{}, 1)}, maxConnCopies: maxConnCopies}
	p.maxConns = int64(cfg.MaxConns)
	if p.maxConns == 0 {
		if p.maxConns, err = connLimit(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			p.closeLoops()
		}
	}()
	for range cfg.Loops {
		l, err := newLoop(p)
		if err != nil {
			return nil, err
		}
		p.loops = append(p.loops, l)
	}
	return p, nil
}

// connLimit raises the soft limit of open files to the hard one and tells how
// many connections fit: each needs two sockets, and a tunnel four pipe ends.
func connLimit() (int64, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	if lim.Cur < lim.Max {
		lim.Cur = lim.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
			return 0, fmt.Errorf("raise limit of open files: %w", err)
		}
	}
	const perConn, spare = 6, 64
	return max(16, (int64(min(lim.Cur, 1<<24))-spare)/perConn), nil
}

// Run serves until ctx ends. Then the listeners close at once, connections in
// the middle of an exchange get until drain to finish it, and Run returns nil.
func (p *Proxy) Run(ctx context.Context, drain time.Duration) error {
	var g errgroup.Group
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go p.watch(watching, watchEvery)
	go p.readers.run(watching)
	for i, l := range p.loops {
		g.Go(func() error {
			if err := l.run(); err != nil {
				return fmt.Errorf("event loop %d: %w", i, err)
			}
			return nil
		})
	}
	stop := context.AfterFunc(ctx, func() {
		p.closing.Store(true)
		p.closeListeners()
		for _, l := range p.loops {
			l.post(func() { l.drainUntil = p.cfg.Now().Add(drain); l.draining = true })
		}
	})
	defer stop()
	return g.Wait()
}

// Insight counts how TLS connections are seen.
func (p *Proxy) Insight() *policy.Insight { return &p.insight }

func (p *Proxy) event(ev policy.Event) { p.cfg.Events.Emit(ev) }
