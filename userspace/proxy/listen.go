// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/dial"
)

// listener is one listening socket in one network namespace.
type listener struct {
	fd     int
	ns     *dial.Netns
	cookie uint64
	v6     bool
}

// Listen opens listeners in ns (nil: the daemon's own namespace), of which it
// becomes a holder, on a free port and returns the namespace's cookie and the
// port, both of which the connect hook must know before it redirects to it.
//
// They listen on every address and without a device, since a listener that is
// bound more closely is not found by the hook's lookup; connections that are
// not to a live token are closed at once. The IPv6 listener is for sockets
// that cannot reach an IPv4 token; a namespace without IPv6 has none.
func (p *Proxy) Listen(ns *dial.Netns) (cookie uint64, port uint16, err error) {
	if ns != nil {
		cookie = ns.Cookie
	} else if cookie, err = dial.OwnCookie(); err != nil {
		return 0, 0, err
	}
	v4, v6, port, err := p.listenBoth(ns)
	if err != nil {
		return 0, 0, err
	}
	l := p.loops[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fd := range []int{v4, v6} {
		if fd < 0 {
			continue
		}
		ns.Retain()
		ln := &listener{fd: fd, ns: ns, cookie: cookie, v6: fd == v6}
		p.listeners = append(p.listeners, ln)
		l.post(func() { l.addListener(ln) })
	}
	return cookie, port, nil
}

// listenBoth opens listeners of both families on one port. v6 is -1 where
// there is no IPv6.
func (p *Proxy) listenBoth(ns *dial.Netns) (v4, v6 int, port uint16, err error) {
	const tries = 16 // the port that is free for one family may be taken for the other
	for range tries {
		if v4, err = p.listen(ns, unix.AF_INET, &unix.SockaddrInet4{}); err != nil {
			return -1, -1, 0, err
		}
		local, errno := localAddr(v4)
		if errno != 0 {
			unix.Close(v4)
			return -1, -1, 0, fmt.Errorf("read address of listener: %w", errno)
		}
		port = local.Port()
		v6, err = p.listen(ns, unix.AF_INET6, &unix.SockaddrInet6{Port: int(port)})
		switch {
		case err == nil:
			return v4, v6, port, nil
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL):
			return v4, -1, port, nil
		}
		unix.Close(v4)
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return -1, -1, 0, err
}

func (p *Proxy) listen(ns *dial.Netns, family int, addr unix.Sockaddr) (_ int, err error) {
	fd, err := ns.Socket(family, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("make listener: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return -1, fmt.Errorf("prepare listener: %w", err)
		}
	}
	for _, opt := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_MARK, int(p.cfg.ListenMark)},
		// Inherited by the accepted sockets.
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_OOBINLINE, 1}, // urgent data would be lost otherwise
	} {
		if err := unix.SetsockoptInt(fd, opt.level, opt.name, opt.value); err != nil {
			return -1, fmt.Errorf("prepare listener: %w", err)
		}
	}
	if err := unix.Bind(fd, addr); err != nil {
		return -1, fmt.Errorf("bind listener: %w", err)
	}
	if err := unix.Listen(fd, p.cfg.Backlog); err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	return fd, nil
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
