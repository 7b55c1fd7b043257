// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
)

// SetQUIC says what becomes of UDP to the ports that Apply names, from now on.
// Port 53, which is that of names, and port 80, where nobody speaks QUIC, are
// never touched.
//
// What is refused fails with ECONNREFUSED: connect() of a socket that does not
// block, and sendmsg() to an address on any socket. It is refused only where
// TCP would be taken in its stead, in a namespace that is enrolled while the
// accept loop beats; what must fail closed is refused always. Sockets that
// were connected before go on, but those of IPv6 to an IPv4 address.
//
// A connect() that blocks is let go and not counted, since resolvers connect
// such a socket to learn a source address and send nothing. A client that
// speaks QUIC on a socket which it connected while it blocked goes unseen.
func (k *Kernel) SetQUIC(mode policy.QUICMode) {
	var refuse uint32
	if mode == policy.QUICRefuse {
		refuse = 1
	}
	atomic.StoreUint32(&k.control.QuicRefuse, refuse)
}

// QUIC counts UDP to one address and port that policy names, by one exit. All
// counts are since Open and never fall. A socket counts once for each of its
// peers, and once more where what became of it changes.
type QUIC struct {
	// Dest is where the datagrams went, or were to go. The zero AddrPort
	// collects what found no room in the map.
	Dest netip.AddrPort
	// Exit is the identity of the exit, as far as it is known before the first
	// datagram: an unbound socket has no source address and no device.
	Exit      string
	Untouched uint64
	Refused   uint64
}

// QUIC returns the counts of all destinations.
func (k *Kernel) QUIC() ([]QUIC, error) {
	var (
		list  []QUIC
		key   egressDestKey
		value egressUdpDest
	)
	it := k.objs.UdpDests.Iterate()
	for it.Next(&key, &value) {
		q := QUIC{Exit: k.exitName(key.Exit), Untouched: value.Untouched, Refused: value.Refused}
		if key.Port != 0 {
			q.Dest = netip.AddrPortFrom(netip.AddrFrom16(key.Addr.Bytes).Unmap(), key.Port)
		} else if q.Untouched+q.Refused == 0 {
			continue
		}
		list = append(list, q)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read counters of UDP: %w", err)
	}
	return list, nil
}
