// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below never block: their descriptors are non-blocking. So they skip
// the scheduler's bookkeeping for blocking calls, which costs about as much as
// the call itself.

// read returns what is there, 0 at the end of the stream, or an errno.
func read(fd int, p []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// write returns how much the kernel took, or an errno. A closed peer is EPIPE;
// MSG_NOSIGNAL keeps the signal away.
func write(fd int, p []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// peek copies the bytes at a distance from what a socket would read next, and
// reports whether all of them are there. On TCP it takes Linux 6.9; errno tells
// if the socket cannot do it.
func peek(fd, at int, b []byte) (ok bool, errno unix.Errno) {
	where := int32(at)
	_, _, errno = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEEK_OFF, uintptr(unsafe.Pointer(&where)), unsafe.Sizeof(where), 0)
	if errno != 0 {
		return false, errno
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return errno == 0 && int(n) == len(b), 0
}

// signal makes an eventfd readable. Its counter cannot overflow here, and
// nothing else fails.
func signal(fd int) {
	one := uint64(1)
	unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// splice moves up to n bytes between a socket and a pipe inside the kernel.
func splice(from, to, n int) (int, unix.Errno) {
	for {
		m, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(m), 0
	}
}

// epollWait first looks without blocking, which is all that a busy loop needs.
func epollWait(epfd int, events []unix.EpollEvent, timeout time.Duration) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno == 0 && n > 0 {
		return int(n), nil
	}
	m, err := unix.EpollWait(epfd, events, int(timeout.Milliseconds()))
	if err == unix.EINTR {
		return 0, nil
	}
	return m, err
}

// reset makes the next close of fd send RST instead of FIN, so that the peer
// sees a broken connection and not an orderly end.
func reset(fd int) {
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// accept takes one connection with its remote address, or an errno.
func accept(fd int) (int, netip.AddrPort, unix.Errno) {
	var sa unix.RawSockaddrInet6
	for {
		size := uint32(unix.SizeofSockaddrInet6)
		n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return int(n), inetAddr(&sa), 0
		case unix.EINTR, unix.ECONNABORTED:
			continue
		}
		return -1, netip.AddrPort{}, errno
	}
}

// localAddr is the address that the client of an accepted connection reached.
func localAddr(fd int) (netip.AddrPort, unix.Errno) {
	var sa unix.RawSockaddrInet6
	size := uint32(unix.SizeofSockaddrInet6)
	_, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	return inetAddr(&sa), 0
}

// inetAddr reads an address of either family; they differ in size and agree in
// where family and port stand.
func inetAddr(sa *unix.RawSockaddrInet6) netip.AddrPort {
	port := (*[2]byte)(unsafe.Pointer(&sa.Port)) // network order
	addr := netip.AddrFrom16(sa.Addr)
	if sa.Family == unix.AF_INET {
		addr = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr)
	}
	return netip.AddrPortFrom(addr, uint16(port[0])<<8|uint16(port[1]))
}
