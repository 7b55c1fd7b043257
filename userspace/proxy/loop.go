// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/dial"
)

const (
	// tick is how often a loop looks up when nothing happens: the heartbeat's
	// period, a tenth of the age at which the connect hook stops redirecting.
	tick = 100 * time.Millisecond
	// sniffTime is how long a client may say nothing before the upstream
	// connection is opened anyway: in some protocols the server speaks first.
	sniffTime = 300 * time.Millisecond
	// undecidedTime is how long, after that, first bytes may stay undecided.
	undecidedTime = 3 * time.Second
	// noteEvery is how far the byte counters may be behind for connections that
	// live long.
	noteEvery = time.Second
	// lingerTime is how long a client may go on sending what nobody reads any
	// more, so that the answer reaches it before a reset would.
	lingerTime = 2 * time.Second
	// watchTime is how often the kernel is asked whether a half-closed client
	// is still there.
	watchTime = 5 * time.Second
)

// What an epoll event is about; packed with the connection's slot and the
// generation of its socket.
const (
	sideClient = iota
	sideUpstream
	sideListener
	sideWake
	sideBits = 2
)

// loop is one event loop. All fields but the posted ones belong to the
// goroutine in run.
type loop struct {
	p         *Proxy
	epfd      int
	wakefd    int
	slots     []*conn // by slot number
	free      []int32 // slots not in use
	gen       int32   // of the socket watched last
	listeners map[int32]*listener
	ready     []*conn // have more to do in this turn
	running   []*conn // of the turn before; kept to reuse its memory
	buffers   buffers
	pipes     pipes
	timers    timers
	now       ledger.Time
	nextNote  ledger.Time
	spare     int // a descriptor kept back for the day when there are none
	graves    []grave
	head      []byte // memory for a request head that is rewritten

	turns      atomic.Uint64 // made so far; watched from outside
	turned     atomic.Uint64 // when the last one began, a ledger.Time
	draining   bool
	drainUntil ledger.Time

	mu      sync.Mutex
	posted  []func()
	granted []*conn
	decided []*conn // granted of the turn before; kept to reuse its memory
	ended   bool
	waking  atomic.Bool
}

func newLoop(p *Proxy) (_ *loop, err error) {
	l := &loop{p: p, epfd: -1, wakefd: -1, spare: -1, listeners: make(map[int32]*listener)}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll instance: %w", err)
	}
	if l.wakefd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	if l.spare, err = unix.Dup(l.wakefd); err != nil {
		return nil, fmt.Errorf("keep a descriptor back: %w", err)
	}
	if err := l.watch(l.wakefd, unix.EPOLLIN, sideWake, 0, 0); err != nil {
		return nil, err
	}
	l.now = p.cfg.Now()
	l.turned.Store(uint64(l.now))
	return l, nil
}

func (l *loop) close() {
	for _, fd := range []int{l.epfd, l.wakefd, l.spare} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	l.pipes.close()
}

func (p *Proxy) closeLoops() {
	for _, l := range p.loops {
		l.close()
	}
}

// watch registers fd once, edge-triggered for connections: no further
// epoll_ctl is needed in its life.
func (l *loop) watch(fd int, events uint32, which int, slot, gen int32) error {
	ev := unix.EpollEvent{Events: events, Fd: slot, Pad: gen<<sideBits | int32(which)}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

// watchSide is watch for the socket of a connection. It gets a generation of
// its own: what a batch of events still says about the socket that had the
// place before is then told apart.
func (l *loop) watchSide(s *side, which int, slot int32) error {
	l.gen = (l.gen + 1) & (1<<(31-sideBits) - 1)
	s.gen = l.gen
	return l.watch(s.fd, connEvents, which, slot, s.gen)
}

// unwatch is for a socket that goes into other hands.
func (l *loop) unwatch(s *side) {
	// A descriptor that is not watched is what it asks for.
	_ = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, s.fd, nil)
}

const connEvents = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// post makes the loop call f soon, unless it has ended: then it returns false.
// Safe for concurrent use, never blocks.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.posted = append(l.posted, f)
	l.wake()
	return true
}

// postGranted makes the loop look at the outcome of c's waiter.
func (l *loop) postGranted(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.granted = append(l.granted, c)
		l.wake()
	}
}

func (l *loop) wake() {
	if l.waking.CompareAndSwap(false, true) {
		signal(l.wakefd)
	}
}

// run is the loop. It returns when it has been told to drain and is empty.
func (l *loop) run() error {
	runtime.LockOSThread() // listeners and sockets of other namespaces are made on this thread
	defer runtime.UnlockOSThread()
	defer func() {
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.runPosted() // whoever waits for an answer gets it
		l.abortAll()  // what was posted may have been a new connection
		l.close()
	}()
	events := make([]unix.EpollEvent, 256)
	var lastTick ledger.Time
	for {
		timeout := tick
		if len(l.ready) > 0 {
			timeout = 0
		}
		n, err := epollWait(l.epfd, events, timeout)
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		l.turns.Add(1)
		l.now = l.p.cfg.Now()
		l.turned.Store(uint64(l.now))
		for i := range events[:n] {
			l.handle(&events[i])
		}
		l.runReady()
		if l.now.Sub(lastTick) >= tick {
			lastTick = l.now
			l.tick()
			if l.draining && l.drained() {
				return nil
			}
		}
	}
}

func (l *loop) handle(ev *unix.EpollEvent) {
	switch which := int(ev.Pad) & (1<<sideBits - 1); which {
	case sideWake:
		l.runPosted()
	case sideListener:
		if ln := l.listeners[ev.Fd]; ln != nil {
			l.acceptAll(ln)
		}
	default:
		// A slot may be empty, or taken anew, if an earlier event of this
		// batch closed the connection.
		if c := l.slots[ev.Fd]; c != nil {
			c.event(which, ev.Pad>>sideBits, ev.Events)
		}
	}
}

func (l *loop) runPosted() {
	var drain [8]byte
	read(l.wakefd, drain[:])
	l.waking.Store(false)
	l.mu.Lock()
	posted, granted := l.posted, l.granted
	l.posted, l.granted = nil, l.decided[:0]
	l.decided = granted
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
	for _, c := range granted {
		c.decided()
	}
	clear(granted)
}

// again gives c another turn after everybody else had theirs.
func (l *loop) again(c *conn) {
	if !c.queued {
		c.queued = true
		l.ready = append(l.ready, c)
	}
}

func (l *loop) runReady() {
	l.running, l.ready = l.ready, l.running[:0]
	for _, c := range l.running {
		c.queued = false
		if !c.closed {
			c.advance()
		}
	}
	clear(l.running)
}

// tick does what is due by time: the heartbeat and the few timeouts.
func (l *loop) tick() {
	if l == l.p.loops[0] && !l.p.closing.Load() && l.p.conns.Load() < l.p.maxConns {
		// Silence is how the proxy says that it is full: new connections then
		// go untouched.
		l.p.cfg.Kernel.Beat(l.now)
	}
	l.timers.expire(l.now)
	l.forgetBuried()
	if l.now >= l.nextNote {
		l.nextNote = l.now.Add(noteEvery)
		for _, c := range l.slots {
			if c != nil {
				c.note()
			}
		}
	}
}

// drained ends what need not, or must not, go on. It reports whether nothing
// is left.
func (l *loop) drained() bool {
	if l.now >= l.drainUntil {
		l.abortAll()
		return true
	}
	done := true
	for _, c := range l.slots {
		switch {
		case c == nil:
		case c.h2 != nil && c.rq == rqTunnel:
			done = c.h2.drain() && done
		case c.idle():
			c.finish() // as any server ends a connection that it has no use for
		case c.rq == rqHeld && c.owed():
			c.fallBack()
			c.advance()
			done = false
		case c.rq == rqHeld || c.rq == rqSniff || c.rq == rqSOCKS && !c.via.asked:
			c.abort() // nothing of the exchange has reached the origin
		default:
			done = false
		}
	}
	return done
}

func (l *loop) abortAll() {
	for _, c := range l.slots {
		if c != nil {
			c.abort()
		}
	}
}

func (l *loop) addListener(ln *listener) {
	if err := l.watch(ln.fd, unix.EPOLLIN, sideListener, int32(ln.fd), 0); err != nil {
		l.p.cfg.Logger.Error("listener is lost", "err", err)
		unix.Close(ln.fd)
		return
	}
	l.listeners[int32(ln.fd)] = ln
}

func (l *loop) removeListener(ln *listener) {
	if l.listeners[int32(ln.fd)] == ln {
		delete(l.listeners, int32(ln.fd))
		unix.Close(ln.fd)
		ln.ns.Release()
	}
}

// acceptAll takes connections until there are no more, but lets others have
// their turn in between: the listener is level-triggered.
func (l *loop) acceptAll(ln *listener) {
	const most = 64
	for range most {
		fd, remote, errno := accept(ln.fd)
		switch errno {
		case 0:
			l.accepted(ln, fd, remote)
		case unix.EMFILE, unix.ENFILE:
			l.shed(ln)
			return
		default: // EAGAIN, or a passing trouble of one connection
			return
		}
	}
}

// shed resets the connection at the head of the accept queue when there is no
// descriptor left for it: waiting for one would hang its client.
func (l *loop) shed(ln *listener) {
	unix.Close(l.spare)
	if fd, _, errno := accept(ln.fd); errno == 0 {
		reset(fd)
		unix.Close(fd)
	}
	l.spare, _ = unix.Dup(l.wakefd)
}

// accepted finds the flow of a new connection and gives it to a loop. Without
// a flow it is no connection of ours: somebody reached the port directly.
func (l *loop) accepted(ln *listener, fd int, remote netip.AddrPort) {
	flow, ok := l.flowOf(ln, fd, remote)
	if !ok {
		reset(fd)
		unix.Close(fd)
		return
	}
	l.p.conns.Add(1)
	to := l.p.loops[int(l.p.next.Add(1))%len(l.p.loops)]
	if to == l {
		l.open(fd, ln.ns, flow, remote)
		return
	}
	ln.ns.Retain() // the listener may be withdrawn before the other loop gets to it
	ok = to.post(func() {
		to.open(fd, ln.ns, flow, remote)
		ln.ns.Release()
	})
	if !ok { // it has ended
		ln.ns.Release()
		l.p.conns.Add(-1)
		reset(fd)
		unix.Close(fd)
	}
}

// flowOf finds the flow of an accepted connection: by the token that it was
// made to, or, where all are made to ::1, by the cookie of the client's socket.
func (l *loop) flowOf(ln *listener, fd int, remote netip.AddrPort) (policy.Flow, bool) {
	local, errno := localAddr(fd)
	if errno != 0 {
		return policy.Flow{}, false
	}
	if !ln.v6 {
		return l.p.cfg.Kernel.Take(ln.cookie, local, remote)
	}
	if !local.Addr().IsLoopback() {
		return policy.Flow{}, false
	}
	client, err := lookUp(ln.ns, remote, local)
	if err != nil {
		return policy.Flow{}, false
	}
	return l.p.cfg.Kernel.TakeCookie(ln.cookie, client.cookie)
}

// open makes a connection out of an accepted socket.
func (l *loop) open(fd int, ns *dial.Netns, flow policy.Flow, remote netip.AddrPort) {
	var slot int32
	if n := len(l.free); n > 0 {
		slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		slot = int32(len(l.slots))
		l.slots = append(l.slots, nil)
	}
	c := newConn(l, slot, fd, ns, flow, remote)
	l.slots[slot] = c
	if err := l.watchSide(&c.client, sideClient, slot); err != nil {
		c.abort()
		return
	}
	l.timers.start(&c.timer, l.now.Add(sniffTime))
}
