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
	local, errno := c.local, unix.Errno(0)
	if c.session == nil {
		local, errno = localAddr(c.client.fd)
	}
	if errno != 0 {
		return true
	}
	client, err := lookUp(c.ns, c.remote, local)
	return err != nil || client.open
}

// peerSocket is the client's end of a connection.
type peerSocket struct {
	open   bool   // a process holds it
	cookie uint64 // SO_COOKIE; 0 if the socket is gone
}

// lookUp asks the kernel, by inet_diag, for the TCP socket with these addresses
// in ns. A closed one is gone, or is there without an inode while its FIN is
// under way. IPv4 addresses find IPv6 sockets with v4-mapped ones too.
func lookUp(ns *dial.Netns, local, remote netip.AddrPort) (peerSocket, error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return peerSocket{}, fmt.Errorf("make diagnosis socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return peerSocket{}, fmt.Errorf("ask for a socket: %w", err)
	}
	var answer [512]byte // the kernel has answered before send returned
	n, _, err := unix.Recvfrom(fd, answer[:], 0)
	if err != nil {
		return peerSocket{}, fmt.Errorf("read about a socket: %w", err)
	}
	return diagAnswer(answer[:n])
}

const (
	diagByFamily   = 20 // SOCK_DIAG_BY_FAMILY, linux/sock_diag.h
	diagRequestLen = 56 // struct inet_diag_req_v2, linux/inet_diag.h
	diagCookieAt   = 44 // offset of id.idiag_cookie in struct inet_diag_msg
	diagInodeAt    = 68 // offset of idiag_inode in it
)

func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+diagRequestLen)
	b = binary.NativeEndian.AppendUint32(b, unix.SizeofNlMsghdr+diagRequestLen)
	b = binary.NativeEndian.AppendUint16(b, diagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number, port id
	family := byte(unix.AF_INET6)
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // any state
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	for _, a := range []netip.AddrPort{local, remote} {
		var words [16]byte // of IPv4 only the first is used
		copy(words[:], a.Addr().AsSlice())
		b = append(b, words[:]...)
	}
	b = append(b, make([]byte, 4)...)                        // any device
	return append(b, 255, 255, 255, 255, 255, 255, 255, 255) // any cookie
}

func diagAnswer(b []byte) (peerSocket, error) {
	if len(b) < unix.SizeofNlMsghdr+4 {
		return peerSocket{}, fmt.Errorf("answer about a socket has %d bytes", len(b))
	}
	body := b[unix.SizeofNlMsghdr:]
	if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		if errno == unix.ENOENT {
			return peerSocket{}, nil
		}
		return peerSocket{}, fmt.Errorf("ask for a socket: %w", errno)
	}
	if len(body) < diagInodeAt+4 {
		return peerSocket{}, fmt.Errorf("answer about a socket has %d bytes", len(b))
	}
	// Two words, the low one first, whatever the byte order.
	low := binary.NativeEndian.Uint32(body[diagCookieAt:])
	high := binary.NativeEndian.Uint32(body[diagCookieAt+4:])
	return peerSocket{
		open:   binary.NativeEndian.Uint32(body[diagInodeAt:]) != 0,
		cookie: uint64(high)<<32 | uint64(low),
	}, nil
}
