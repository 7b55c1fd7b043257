// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Check reports whether the connected socket fd leaves the host as the client's
// own socket in flow f would have: by its source address, device, mark and
// owner. want is the route of an unbound client, see Netns.Route; a bound one
// keeps its address, whatever the route says. The error wraps ErrExit and names
// the property that differs; the connection must then be reset before anything
// is sent.
func Check(fd int, f *policy.Flow, want Route) error {
	source := f.Source
	if !source.IsValid() {
		source = want.Source
	}
	got, err := localSource(fd)
	if err != nil {
		return fmt.Errorf("%w: read source: %w", ErrExit, err)
	}
	if got != source {
		return fmt.Errorf("%w: source is %v, the client's would be %v", ErrExit, got, source)
	}
	device, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	if err != nil {
		return fmt.Errorf("%w: read device: %w", ErrExit, err)
	}
	if uint32(device) != f.Ifindex {
		return fmt.Errorf("%w: bound to device %d, the client to %d", ErrExit, device, f.Ifindex)
	}
	mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	if err != nil {
		return fmt.Errorf("%w: read mark: %w", ErrExit, err)
	}
	if uint32(mark) != f.Mark {
		return fmt.Errorf("%w: mark is %#x, the client's %#x", ErrExit, uint32(mark), f.Mark)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: read owner: %w", ErrExit, err)
	}
	if st.Uid != f.UID {
		return fmt.Errorf("%w: owner is uid %d, the client's %d", ErrExit, st.Uid, f.UID)
	}
	return nil
}

// localSource is the address by which the socket sends.
func localSource(fd int) (netip.Addr, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr).Unmap(), nil
	}
	return netip.Addr{}, unix.EAFNOSUPPORT
}
