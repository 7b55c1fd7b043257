// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// ErrExit says that a property of the client's socket could not be given to
// the upstream socket: the flow would leave by another exit, so it must not
// leave at all.
var ErrExit = errors.New("exit cannot be kept")

// Start makes a socket like the client's in flow f and starts to connect it to
// f.Dest. The connection is usually still under way on return: the socket
// turns writable when it is decided, and Err tells how.
//
// Kept are the namespace, device, mark, source address and uid. An unbound
// client stays unbound: the same destination, mark, device and uid in the same
// namespace give the same route and so the same source.
func Start(f *policy.Flow, ns *Netns) (fd int, err error) {
	family := unix.AF_INET6
	if f.Dest.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err = ns.Socket(family, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("make upstream socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	if err := keep(fd, f); err != nil {
		return -1, fmt.Errorf("%w: %w", ErrExit, err)
	}
	// The proxy hands on what it reads at once; Nagle's delay is the client's
	// and the origin's business.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return -1, fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	// Urgent data stays in its place in the stream, where reads find it.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1); err != nil {
		return -1, fmt.Errorf("set SO_OOBINLINE: %w", err)
	}
	switch err := unix.Connect(fd, sockaddr(f.Dest)); err {
	case nil, unix.EINPROGRESS:
		return fd, nil
	case unix.ENODEV: // SO_BINDTOIFINDEX took the number of a device that is gone
		return -1, fmt.Errorf("%w: device %d: %w", ErrExit, f.Ifindex, err)
	default:
		return -1, err
	}
}

// keep gives fd what decides about the exit.
func keep(fd int, f *policy.Flow) error {
	if f.Mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(f.Mark)); err != nil {
			return fmt.Errorf("set mark %#x: %w", f.Mark, err)
		}
	}
	if f.Ifindex != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(f.Ifindex)); err != nil {
			return fmt.Errorf("bind to device %d: %w", f.Ifindex, err)
		}
	}
	// The owner of the socket, not the credentials of the thread, is what
	// uidrange rules and "meta skuid" look at.
	if int(f.UID) != unix.Geteuid() {
		if err := unix.Fchown(fd, int(f.UID), -1); err != nil {
			return fmt.Errorf("give the socket to uid %d: %w", f.UID, err)
		}
	}
	if f.Source.IsValid() {
		// Without this option bind would take a port for the address as a
		// whole instead of for the pair of addresses.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return fmt.Errorf("set IP_BIND_ADDRESS_NO_PORT: %w", err)
		}
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(f.Source, 0))); err != nil {
			return fmt.Errorf("bind source %v: %w", f.Source, err)
		}
	}
	return nil
}

// Err is how the connection of a socket from Start came out: nil when it
// stands, unix.EINPROGRESS while it is under way.
func Err(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return fmt.Errorf("read SO_ERROR: %w", err)
	}
	if n != 0 {
		return unix.Errno(n)
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
