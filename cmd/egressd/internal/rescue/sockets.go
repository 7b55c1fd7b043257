// SPDX-License-Identifier: Apache-2.0

package rescue

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// find takes hold of the daemon's listeners.
func (w *watcher) find() error {
	return w.sockets(func(fd int) (keep bool) {
		if isListener(fd) {
			w.listeners = append(w.listeners, fd)
			return true
		}
		return false
	})
}

// release resets the connections that the daemon has accepted from the hook, and
// says how many.
func (w *watcher) release() (n int, err error) {
	ports := map[uint16]bool{}
	for _, fd := range w.listeners {
		if local, ok := localOf(fd); ok {
			ports[local.Port()] = true
		}
	}
	err = w.sockets(func(fd int) (keep bool) {
		if local, ok := localOf(fd); ok && led(local) && ports[local.Port()] && !isListener(fd) && reset(fd) == nil {
			n++
		}
		return false
	})
	return n, err
}

// led reports whether that is where the hook leads connections.
func led(local netip.AddrPort) bool {
	addr := local.Addr().Unmap()
	return loader.TokenPrefix.Contains(addr) || addr == netip.IPv6Loopback()
}

// sockets calls f with a descriptor of our own for each socket of the daemon, and
// closes it unless f keeps it.
func (w *watcher) sockets(f func(fd int) (keep bool)) error {
	dir := "/proc/" + strconv.Itoa(w.pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read descriptors of process %d: %w", w.pid, err)
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink(dir + e.Name()); err != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(w.pidfd, n, 0)
		if errors.Is(err, unix.EBADF) {
			continue // it was closed just now
		}
		if err != nil {
			return fmt.Errorf("take hold of a socket of process %d: %w", w.pid, err)
		}
		if !f(fd) {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// isListener reports whether it is a listener of the hook.
func isListener(fd int) bool {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return false
	}
	mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	return err == nil && uint32(mark) == loader.ListenerMark
}

// localOf is the local address of a TCP socket.
func localOf(fd int) (netip.AddrPort, bool) {
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		return netip.AddrPort{}, false
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, false
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), true
	}
	return netip.AddrPort{}, false
}

// dismiss accepts what waits at the listeners, and resets it. The listeners do
// not block: the description is the daemon's.
func dismiss(listeners []int) (n int) {
	for _, listener := range listeners {
		for {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			if err != nil {
				break
			}
			_ = reset(fd)
			_ = unix.Close(fd)
			n++
		}
	}
	return n
}

// reset ends a connection, whoever else has it, so that its peer sees no orderly
// end (connect(2) with AF_UNSPEC, tcp_disconnect).
func reset(fd int) error {
	var unspecified [16]byte
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)), uintptr(len(unspecified)))
	if errno != 0 {
		return errno
	}
	return nil
}

// isStopped reports whether a process is stopped, by a signal or a debugger
// (proc_pid_stat(5)).
func isStopped(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The name in parentheses may hold anything.
	i := bytes.LastIndexByte(text, ')')
	return i >= 0 && len(text) > i+2 && (text[i+2] == 'T' || text[i+2] == 't')
}
