// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SYN is the first packet of a connection, or the same sent again.
type SYN struct {
	At       Mono // when the kernel had it at the device
	From, To netip.AddrPort
}

// Ear writes down the SYNs that a device sends and receives. It is safe for
// concurrent use.
//
// The kernel shows a device's packets to an ear behind its qdisc: what waits in
// fq is heard when it leaves.
type Ear struct {
	socket *os.File
	loop   sync.WaitGroup

	mu   sync.Mutex
	syns []SYN
}

// Hear opens an ear at a device of the namespace.
func (n *Netns) Hear(device string) (*Ear, error) {
	var e Ear
	err := n.Do(func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		// Protocol 0 hears nothing until bind names one: else the socket
		// would hear every device for a moment.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
			unix.Close(fd)
			return err
		}
		// Who listens may not run for a while.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			unix.Close(fd)
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			unix.Close(fd)
			return err
		}
		e.socket = os.NewFile(uintptr(fd), "packets of "+device)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("hear %s: %w", device, err)
	}
	e.loop.Go(e.listen)
	return &e, nil
}

// SYNs lists what was heard, in its order.
func (e *Ear) SYNs() []SYN {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]SYN(nil), e.syns...)
}

// SYNsTo counts the SYNs to an address and port by the port that they come
// from: more than one is a SYN that was sent again.
func (e *Ear) SYNsTo(to netip.AddrPort) map[uint16]int {
	counts := map[uint16]int{}
	for _, syn := range e.SYNs() {
		if syn.To == to {
			counts[syn.From.Port()]++
		}
	}
	return counts
}

// Close ends the listening.
func (e *Ear) Close() error {
	err := e.socket.Close()
	e.loop.Wait()
	return err
}

func (e *Ear) listen() {
	conn, err := e.socket.SyscallConn()
	if err != nil {
		return // it is closed
	}
	packet := make([]byte, 256) // more than any header that is read
	control := make([]byte, 256)
	for {
		var n, controls int
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			n, controls, _, _, failed = unix.Recvmsg(int(fd), packet, control, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil {
			return
		}
		if errors.Is(failed, unix.ENETDOWN) || errors.Is(failed, unix.EINTR) {
			continue // the device went down; it may come up again
		}
		if failed != nil {
			return
		}
		if from, to, ok := parseSYN(packet[:n]); ok {
			at := stamp(control[:controls])
			e.mu.Lock()
			e.syns = append(e.syns, SYN{at, from, to})
			e.mu.Unlock()
		}
	}
}

// stamp is the time that the kernel noted for a packet, which is of another
// clock.
func stamp(control []byte) Mono {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return Now()
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SO_TIMESTAMPNS || len(m.Data) < 16 {
			continue
		}
		noted := time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		return fromReal(noted)
	}
	return Now()
}

// fromReal makes a time of CLOCK_REALTIME one of ours by a look at both clocks.
// Whoever is interrupted between the looks takes the pause for a difference of the
// clocks, so it is looked again, and the quickest look counts.
func fromReal(t time.Time) Mono {
	var best Mono
	shortest := time.Duration(math.MaxInt64)
	for range 10 {
		before := Now()
		ago := time.Now().Round(0).Sub(t)
		after := Now()
		if took := after.Sub(before); took < shortest {
			shortest, best = took, before+Mono(took/2)-Mono(ago)
		}
		if shortest < 20*time.Microsecond {
			break
		}
	}
	return best
}

// parseSYN reads an IP packet, or the beginning of one. ok says that it is a
// TCP SYN without ACK. Extension headers of IPv6 are not looked behind: SYNs
// have none.
func parseSYN(p []byte) (from, to netip.AddrPort, ok bool) {
	const tcp, syn, ack = 6, 0x02, 0x10
	var src, dst netip.Addr
	if len(p) == 0 {
		return from, to, false
	}
	switch p[0] >> 4 {
	case 4: // RFC 791, 3.1
		size := int(p[0]&15) * 4
		fragment := 0
		if len(p) >= 20 {
			fragment = int(binary.BigEndian.Uint16(p[6:]) & 0x1fff)
		}
		if size < 20 || len(p) < size || p[9] != tcp || fragment != 0 {
			return from, to, false
		}
		src, dst = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
		p = p[size:]
	case 6: // RFC 8200, 3
		if len(p) < 40 || p[6] != tcp {
			return from, to, false
		}
		src, dst = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
		p = p[40:]
	default:
		return from, to, false
	}
	// RFC 9293, 3.1
	if len(p) < 14 || p[13]&(syn|ack) != syn {
		return from, to, false
	}
	from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(p))
	to = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:]))
	return from, to, true
}
