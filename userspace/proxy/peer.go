// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/dial"
)

// stillThere tells a client that only ended its own sending, and still waits
// for the answer, from one that closed its socket: both look alike on the
// wire. The client is on this host, so the kernel can be asked. In doubt the
// client is there.
func (c *conn) stillThere() bool {
	local, errno := localAddr(c.client.fd)
	if errno != 0 {
		return true
	}
	open, err := socketOpen(c.ns, c.remote, local)
	return err != nil || open
}

// socketOpen asks the kernel, by inet_diag, whether a process still holds the
// TCP socket with these addresses in ns. A closed one is gone, or is there
// without an inode while its FIN is under way. IPv4 only; it finds IPv6
// sockets with v4-mapped addresses too.
func socketOpen(ns *dial.Netns, local, remote netip.AddrPort) (bool, error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return false, fmt.Errorf("make diagnosis socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, fmt.Errorf("ask for a socket: %w", err)
	}
	var answer [512]byte // the kernel has answered before send returned
	n, _, err := unix.Recvfrom(fd, answer[:], 0)
	if err != nil {
		return false, fmt.Errorf("read about a socket: %w", err)
	}
	return diagAnswer(answer[:n])
}

const (
	diagByFamily   = 20 // SOCK_DIAG_BY_FAMILY, linux/sock_diag.h
	diagRequestLen = 56 // struct inet_diag_req_v2, linux/inet_diag.h
	diagInodeAt    = 68 // offset of idiag_inode in struct inet_diag_msg
)

func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+diagRequestLen)
	b = binary.NativeEndian.AppendUint32(b, unix.SizeofNlMsghdr+diagRequestLen)
	b = binary.NativeEndian.AppendUint16(b, diagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number, port id
	b = append(b, unix.AF_INET, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // any state
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	for _, a := range []netip.AddrPort{local, remote} {
		ip := a.Addr().As4()
		b = append(b, ip[:]...)
		b = append(b, make([]byte, 12)...)
	}
	b = append(b, make([]byte, 4)...)                        // any device
	return append(b, 255, 255, 255, 255, 255, 255, 255, 255) // any cookie
}

func diagAnswer(b []byte) (open bool, err error) {
	if len(b) < unix.SizeofNlMsghdr+4 {
		return false, fmt.Errorf("answer about a socket has %d bytes", len(b))
	}
	body := b[unix.SizeofNlMsghdr:]
	if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		if errno == unix.ENOENT {
			return false, nil
		}
		return false, fmt.Errorf("ask for a socket: %w", errno)
	}
	if len(body) < diagInodeAt+4 {
		return false, fmt.Errorf("answer about a socket has %d bytes", len(b))
	}
	return binary.NativeEndian.Uint32(body[diagInodeAt:]) != 0, nil
}
