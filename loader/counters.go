// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// gateNames has the name of each gate of bpf/gates.h.
var gateNames = [egressGateGATE_MAX]string{
	egressGateGATE_REDIRECTED:  GateRedirected,
	egressGateGATE_UDP:         "udp",
	egressGateGATE_PROTOCOL:    "protocol",
	egressGateGATE_OWN:         "own",
	egressGateGATE_EXCLUDED:    "excluded",
	egressGateGATE_KERNEL:      "kernel",
	egressGateGATE_STORAGE:     "storage",
	egressGateGATE_TOKEN:       "token",
	egressGateGATE_UNNAMED:     "unnamed",
	egressGateGATE_DEVICE:      "device",
	egressGateGATE_SOURCE_PORT: "source_port",
	egressGateGATE_V6ONLY:      "v6_only",
	egressGateGATE_NEGATIVE:    "negative",
	egressGateGATE_NETNS:       "netns",
	egressGateGATE_LISTENER:    "listener",
	egressGateGATE_HEARTBEAT:   "heartbeat",
	egressGateGATE_BACKLOG:     "backlog",
	egressGateGATE_FULL:        "full",
	egressGateGATE_GRANTED:     GateGranted,
	egressGateGATE_HELD:        GateHeld,
	egressGateGATE_OVER:        "over",
	egressGateGATE_CLOSED:      "closed",
}

// GateRedirected is the name of the gate through which connections go to the
// proxy. All others leave them untouched.
const GateRedirected = "redirected"

// Names of the gates of the kernel plane through which connections go without
// the proxy: at once, or at their turn.
const (
	GateGranted = "granted"
	GateHeld    = "held"
)

// Gate counts the connect() calls that left the hook in one way.
type Gate struct {
	Name   string
	Passed uint64 // went on: to the proxy through GateRedirected, untouched through the others
	// Refused counts those that were refused instead: since their budget says
	// fail: closed; by the gates "over" and "closed" of the kernel plane, since
	// nothing could hold them; by the gate for UDP, since QUIC is refused.
	Refused uint64
}

// Gates returns the count of every gate since Open, zeros included, always in
// the same order.
func (k *Kernel) Gates() ([]Gate, error) {
	gates := make([]Gate, len(gateNames))
	for i, name := range gateNames {
		var perCPU []egressGateCount
		if err := k.objs.Gates.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read gate %s: %w", name, err)
		}
		gates[i].Name = name
		for _, c := range perCPU {
			gates[i].Passed += c.Passed
			gates[i].Refused += c.Refused
		}
	}
	return gates, nil
}

// Destination counts TCP connections to one address and port by one exit. All
// counts are since Open and never fall.
type Destination struct {
	// Dest is where the clients wanted to go, whether redirected or not. The
	// zero AddrPort collects what found no room in the map.
	Dest netip.AddrPort
	// Exit is the identity of the exit, see policy.Exit. That of a socket
	// which is bound to nothing and left alone is told by the source address
	// and the device that it has once it is established. If it never is, or
	// is redirected, it is told by mark and user alone.
	Exit string

	Redirected uint64 // connect() calls led to the proxy
	// Untouched counts connect() calls left alone. Where the exit shows late,
	// they count when the connection is accounted for.
	Untouched uint64
	// Granted and Held count connections that the kernel plane let go, at once
	// or at their turn. They count when the connection is accounted for.
	Granted, Held uint64
	Refused       uint64 // connect() calls refused, see Gate

	// Outcomes of all but the refused; a connection under way has none yet.
	// A redirected one is established once the proxy's listener has it.
	Established uint64
	Failed      uint64

	TxBytes     uint64 // payload that the clients handed over
	RxBytes     uint64 // payload that arrived
	Retransmits uint64 // segments sent again

	// Handshakes counts untouched connections whose round trip is known, and
	// HandshakeTime is the sum over them of the least round trip that the
	// kernel saw until it first accounted for the connection, at a call of
	// Connections or when it was closed. That is the time from SYN to SYN-ACK,
	// unless data was answered sooner; a SYN that was sent again is not
	// timed. A reused socket counts for its first connection only.
	Handshakes    uint64
	HandshakeTime time.Duration
}

// Attempts is the number of connect() calls.
func (d Destination) Attempts() uint64 {
	return d.Redirected + d.Untouched + d.Granted + d.Held + d.Refused
}

// Connections returns the counts of all destinations, bytes of connections
// that are open now included. Its cost grows with the number of sockets and
// destinations: it is meant for scrapes and status pages.
func (k *Kernel) Connections() ([]Destination, error) {
	if err := k.accountOpen(); err != nil {
		return nil, err
	}
	var (
		list  []Destination
		key   egressDestKey
		value egressDest
	)
	it := k.objs.Dests.Iterate()
	for it.Next(&key, &value) {
		d := Destination{
			Exit:        k.exitName(key.Exit),
			Redirected:  value.Redirected,
			Untouched:   value.Untouched,
			Granted:     value.Granted,
			Held:        value.Held,
			Refused:     value.Refused,
			Established: value.Established,
			Failed:      value.Failed,
			TxBytes:     value.TxBytes,
			RxBytes:     value.RxBytes,
			Retransmits: value.Retransmits,

			Handshakes:    value.Handshakes,
			HandshakeTime: time.Duration(value.HandshakeUs) * time.Microsecond,
		}
		if key.Port != 0 || key.Addr.Bytes != ([16]byte{}) {
			d.Dest = netip.AddrPortFrom(netip.AddrFrom16(key.Addr.Bytes).Unmap(), key.Port)
		} else if d.Attempts() == 0 {
			continue
		}
		list = append(list, d)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read destination counters: %w", err)
	}
	return list, nil
}

// accountOpen brings the counters up to date with all open sockets.
func (k *Kernel) accountOpen() error {
	k.flushMu.Lock()
	defer k.flushMu.Unlock()
	// A socket whose client closes it just while the program looks is released
	// by this thread. The program notes which one it is, so that the socket is
	// not taken for one of the daemon's own: it must do nothing else meanwhile.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := k.flush.Open()
	if err != nil {
		return fmt.Errorf("read open sockets: %w", err)
	}
	_, err = io.Copy(io.Discard, r)
	err = errors.Join(err, r.Close())
	atomic.StoreUint32(&k.control.Reader, 0)
	return err
}

// Dropped counts connections whose destination found no room in its map and
// that were counted under the zero AddrPort instead.
func (k *Kernel) Dropped() uint64 {
	return atomic.LoadUint64(&k.control.Dropped)
}

// Program is the cost of one program. Both numbers stay zero unless
// EnableStats is, or was, in effect.
type Program struct {
	Name    string
	Runs    uint64
	Runtime time.Duration
}

// Programs returns the cost of every program that runs for clients.
func (k *Kernel) Programs() ([]Program, error) {
	var list []Program
	for _, h := range k.hooks() {
		stats, err := h.program.Stats()
		if err != nil {
			return nil, fmt.Errorf("read cost of %s: %w", h.attach, err)
		}
		info, err := h.program.Info()
		if err != nil {
			return nil, fmt.Errorf("read cost of %s: %w", h.attach, err)
		}
		list = append(list, Program{Name: info.Name, Runs: stats.RunCount, Runtime: stats.Runtime})
	}
	return list, nil
}

// EnableStats makes the kernel measure the run time of all programs of the
// machine until the result is closed. It adds some 20 ns to every run.
func EnableStats() (io.Closer, error) {
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("enable program statistics: %w", err)
	}
	return c, nil
}
