// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/mono"
)

// handover stands in for the connect hook: it hands out tokens for
// destinations, which the test's client dials instead.
type handover struct {
	mu        sync.Mutex
	next      uint16
	flows     map[netip.Addr]policy.Flow
	cookies   map[uint64]policy.Flow
	negatives map[netip.AddrPort]ledger.Time
	beats     int
}

func (h *handover) token(f policy.Flow) netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	token := netip.AddrFrom4([4]byte{127, 101, byte(h.next >> 8), byte(h.next)})
	h.flows[token] = f
	return token
}

func (h *handover) Take(_ uint64, token, _ netip.AddrPort) (policy.Flow, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.flows[token.Addr()]
	delete(h.flows, token.Addr())
	return f, ok
}

func (h *handover) TakeCookie(_, cookie uint64) (policy.Flow, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.cookies[cookie]
	delete(h.cookies, cookie)
	return f, ok
}

func (h *handover) Beat(ledger.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats++
}

func (h *handover) Negative(_ uint64, dest netip.AddrPort, until ledger.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.negatives[dest] = until
	return nil
}

func (h *handover) beaten() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beats
}

func (h *handover) negative(dest netip.AddrPort) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.negatives[dest]
	return ok
}

// memory keeps what is written to it.
type memory struct {
	mu  sync.Mutex
	all strings.Builder
}

func (m *memory) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.Write(b)
}

func (m *memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.String()
}

// bench is a proxy under test.
type bench struct {
	*Proxy
	t      testing.TB
	hook   *handover
	engine *policy.Engine
	gate   *gate.Gate
	events *events.Log
	logs   *memory
	port   uint16
	exit   *policy.Exit // of every destination that is connected to; nil: none
	named  map[netip.AddrPort]*policy.Exit
	pid    uint32 // of clients, if not 0; their sockets then have the cookies 1, 2, …
	cookie uint64
	stop   func() error // ends the proxy, and waits for that
}

// budget is a complete budget for host, to be changed by a test.
func budget(host string, rate policy.Rate) *policy.Budget {
	return &policy.Budget{
		Name:     "test",
		Match:    policy.Match{Hosts: []policy.HostPattern{{Name: host}}},
		Per:      policy.PerDestination | policy.PerExit,
		Rate:     rate,
		Burst:    1,
		Queue:    policy.Queue{Max: 1000, MaxWait: 30 * time.Second},
		Cooldown: policy.Cooldown{Default: time.Second, Max: 24 * time.Hour, Statuses: []int{429}},
		Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
		Flights:  true,
	}
}

// plenty is a rate that never holds anything in a test.
var plenty = policy.Rate{Count: 1e9, Every: time.Second}

// start runs a proxy with budgets until the test ends. Budgets without ports
// match any port.
func start(t testing.TB, budgets ...*policy.Budget) *bench {
	t.Helper()
	return startWith(t, Config{}, 0, budgets...)
}

// startWith is start with the optional fields of cfg, and time to drain.
func startWith(t testing.TB, cfg Config, drain time.Duration, budgets ...*policy.Budget) *bench {
	t.Helper()
	return startPolicy(t, cfg, drain, &policy.Policy{Budgets: budgets})
}

// startVia is start where every destination is a proxy, that of an exit.
func startVia(t testing.TB, exit policy.Exit, budgets ...*policy.Budget) *bench {
	t.Helper()
	return startViaWith(t, Config{}, exit, budgets...)
}

func startViaWith(t testing.TB, cfg Config, exit policy.Exit, budgets ...*policy.Budget) *bench {
	t.Helper()
	p := &policy.Policy{Exits: []policy.Exit{exit}, Budgets: budgets}
	b := startPolicy(t, cfg, 0, p)
	b.exit = &p.Exits[0]
	return b
}

func startPolicy(t testing.TB, cfg Config, drain time.Duration, p *policy.Policy) *bench {
	t.Helper()
	engine, err := policy.NewEngine(p, make([]ledger.Cell, 128), nil, mono.Now())
	if err != nil {
		t.Fatal(err)
	}
	log := events.New(256)
	logs := new(memory)
	logger := slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g := gate.New(gate.Config{Now: mono.Now, Events: log, Logger: logger})
	b := &bench{t: t, engine: engine, gate: g, events: log, logs: logs, named: map[netip.AddrPort]*policy.Exit{}, hook: &handover{
		flows:     make(map[netip.Addr]policy.Flow),
		cookies:   make(map[uint64]policy.Flow),
		negatives: make(map[netip.AddrPort]ledger.Time),
	}}
	cfg.Engine, cfg.Gate, cfg.Events, cfg.Kernel, cfg.Now, cfg.Logger, cfg.Loops = engine, g, log, b.hook, mono.Now, logger, 2
	b.Proxy, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, b.port, err = b.Listen(nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, drain) }()
	b.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		g.Close()
	})
	return b
}

// connect connects to dest as a redirected client would.
func (b *bench) connect(dest netip.AddrPort) *net.TCPConn {
	b.t.Helper()
	f := policy.Flow{Dest: dest, Exit: policy.DirectExit, UID: uint32(os.Geteuid()), PID: b.pid}
	if b.pid != 0 {
		b.cookie++
		f.Cookie = b.cookie
	}
	return b.connectFlow(f)
}

// name makes dest the address of the proxy of an exit.
func (b *bench) name(dest netip.AddrPort, exit *policy.Exit) {
	b.named[dest] = exit
	b.engine.SetEndpoints(maps.Clone(b.named))
}

func (b *bench) connectFlow(f policy.Flow) *net.TCPConn {
	b.t.Helper()
	if b.exit != nil && b.named[f.Dest] == nil {
		b.name(f.Dest, b.exit)
	}
	if exit := b.named[f.Dest]; exit != nil {
		f.Exit = exit.Identity()
	}
	c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.hook.token(f), b.port)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// origin accepts connections and serves each by serve, whose connection is
// closed when it returns.
func origin(t testing.TB, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}
