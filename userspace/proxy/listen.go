// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/dial"
)

// listener is one listening socket in one network namespace.
type listener struct {
	fd     int
	ns     *dial.Netns
	cookie uint64
	port   uint16
}

// Listen opens a listener in ns (nil: the daemon's own namespace), of which it
// becomes a holder, on a free port and returns the namespace's cookie and the port, both of which the
// connect hook must know before it redirects to it.
//
// It listens on every address and without a device, since a listener that is
// bound more closely is not found by the hook's lookup; connections that are
// not to a live token are closed at once.
func (p *Proxy) Listen(ns *dial.Netns) (cookie uint64, port uint16, err error) {
	if ns != nil {
		cookie = ns.Cookie
	} else if cookie, err = dial.OwnCookie(); err != nil {
		return 0, 0, err
	}
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		return 0, 0, fmt.Errorf("make listener: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	for _, opt := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_MARK, int(p.cfg.ListenMark)},
		// Inherited by the accepted sockets.
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		if err := unix.SetsockoptInt(fd, opt.level, opt.name, opt.value); err != nil {
			return 0, 0, fmt.Errorf("prepare listener: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return 0, 0, fmt.Errorf("bind listener: %w", err)
	}
	if err := unix.Listen(fd, p.cfg.Backlog); err != nil {
		return 0, 0, fmt.Errorf("listen: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, 0, fmt.Errorf("read address of listener: %w", err)
	}
	port = uint16(sa.(*unix.SockaddrInet4).Port)

	ns.Retain()
	ln := &listener{fd: fd, ns: ns, cookie: cookie, port: port}
	p.mu.Lock()
	p.listeners = append(p.listeners, ln)
	p.mu.Unlock()
	l := p.loops[0]
	l.post(func() { l.addListener(ln) })
	return cookie, port, nil
}

// Backlog is the length of each listener's accept queue.
func (p *Proxy) Backlog() uint32 { return uint32(p.cfg.Backlog) }

// Withdraw closes the listener in the namespace with that cookie. Connections
// that it accepted go on.
func (p *Proxy) Withdraw(cookie uint64) {
	p.removeListeners(func(ln *listener) bool { return ln.cookie == cookie })
}

func (p *Proxy) closeListeners() {
	p.removeListeners(func(*listener) bool { return true })
}

func (p *Proxy) removeListeners(which func(*listener) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.listeners[:0]
	for _, ln := range p.listeners {
		if !which(ln) {
			kept = append(kept, ln)
			continue
		}
		l := p.loops[0]
		l.post(func() { l.removeListener(ln) })
	}
	p.listeners = kept
}

// addrPort turns a kernel socket address into ours, v4-mapped ones unmapped.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
