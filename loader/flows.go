// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// ListenerMark is the SO_MARK that a listener of the daemon must carry: the
// programs redirect only to a listener with it.
const ListenerMark = 0x65677244

// TokenPrefix holds the addresses to which connections are redirected. A
// listener must accept connections to all of them, so it binds to 0.0.0.0 or
// [::] without a device.
var TokenPrefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 101, 0, 0}), 16)

// staleAfter is the age at which Sweep gives up a flow that nobody took.
const staleAfter = 10 * time.Second

// Enrol makes the network namespace with the given cookie (NetnsCookie)
// eligible: connections made in it are redirected to port, while a listener
// with ListenerMark is there and fewer than backlog redirected connections
// wait to be taken. Enrolling again changes port and backlog.
func (k *Kernel) Enrol(netns uint64, port uint16, backlog uint32) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	e, known := k.enrolled[netns]
	if !known {
		slot, ok := k.freeSlot()
		if !ok {
			return fmt.Errorf("enrol network namespace %d: %w", netns, ErrNetnsFull)
		}
		e.Slot = slot
	}
	e.Port = port
	atomic.StoreUint64(&k.backlogs[e.Slot].Limit, uint64(backlog))
	if err := k.objs.Enrolments.Update(netns, e, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("enrol network namespace %d: %w", netns, err)
	}
	k.enrolled[netns] = e
	return nil
}

// freeSlot finds a backlog that no namespace uses and on which no flow of a
// withdrawn one counts any more. Pending counts are never reset, so each is
// right whatever a program that was under way does.
func (k *Kernel) freeSlot() (uint32, bool) {
	used := make(map[uint32]bool, len(k.enrolled))
	for _, e := range k.enrolled {
		used[e.Slot] = true
	}
	for i := range k.backlogs {
		if !used[uint32(i)] && atomic.LoadUint64(&k.backlogs[i].Pending) == 0 {
			return uint32(i), true
		}
	}
	return 0, false
}

// Withdraw ends what Enrol began. Flows already redirected can still be
// taken. Withdrawing what is not enrolled does nothing.
func (k *Kernel) Withdraw(netns uint64) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	if _, ok := k.enrolled[netns]; !ok {
		return nil
	}
	if err := k.objs.Enrolments.Delete(netns); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("withdraw network namespace %d: %w", netns, err)
	}
	delete(k.enrolled, netns)
	return nil
}

// taker is the scratch memory of one Take.
type taker struct {
	key   egressFlowKey
	value egressFlow
}

// Take fetches and deletes the record of a connection that was accepted in
// the network namespace netns, with the given addresses of the accepted
// socket; the local one is the token, which says it all. It reports false if
// there is no record: the connection was not redirected, or was taken before.
// It must then be closed, or anybody could use the daemon as a proxy.
func (k *Kernel) Take(netns uint64, local, _ netip.AddrPort) (policy.Flow, bool) {
	addr := local.Addr().Unmap()
	if !TokenPrefix.Contains(addr) {
		return policy.Flow{}, false
	}
	t := k.takers.Get().(*taker)
	defer k.takers.Put(t)
	t.key = flowKey(netns, addr)
	if !k.takeFlow(&t.key, &t.value) {
		return policy.Flow{}, false
	}
	return k.flow(netns, &t.value), true
}

func flowKey(netns uint64, token netip.Addr) egressFlowKey {
	bytes := token.As4()
	return egressFlowKey{Netns: netns, Id: uint64(binary.NativeEndian.Uint32(bytes[:]))}
}

// flowByCookie is FLOW_BY_COOKIE of bpf/flows.h.
const flowByCookie = 1 << 63

// TakeCookie is Take for a connection to [::1], by the cookie of the client's
// socket: sockets that speak only IPv6 reach no token. The caller finds the
// cookie by inet_diag.
func (k *Kernel) TakeCookie(netns, cookie uint64) (policy.Flow, bool) {
	t := k.takers.Get().(*taker)
	defer k.takers.Put(t)
	t.key = egressFlowKey{Netns: netns, Id: flowByCookie | cookie}
	if !k.takeFlow(&t.key, &t.value) {
		return policy.Flow{}, false
	}
	return k.flow(netns, &t.value), true
}

// takeFlow moves a record out of the map and off its pending count. Of any
// number of callers one gets it.
func (k *Kernel) takeFlow(key *egressFlowKey, value *egressFlow) bool {
	if err := k.objs.Flows.LookupAndDelete(key, value); err != nil {
		return false
	}
	atomic.AddUint64(&k.backlogs[value.Slot].Pending, ^uint64(0))
	return true
}

// flow translates a record.
func (k *Kernel) flow(netns uint64, r *egressFlow) policy.Flow {
	f := policy.Flow{
		Cookie:  r.Cookie,
		Netns:   netns,
		Dest:    netip.AddrPortFrom(netip.AddrFrom16(r.Dest.Bytes).Unmap(), r.Port),
		Ifindex: r.Ifindex,
		Mark:    r.Mark,
		UID:     r.Uid,
		PID:     r.Tgid,
		Cgroup:  r.Cgroup,
		Exit:    k.exitName(r.Exit),
		At:      ledger.Time(r.At),
		Command: commString(&r.Comm),
	}
	if r.Source.Bytes != ([16]byte{}) {
		f.Source = netip.AddrFrom16(r.Source.Bytes).Unmap()
	}
	return f
}

// commString is the text before the first NUL.
func commString(comm *[16]int8) string {
	bytes := (*[16]byte)(unsafe.Pointer(comm))
	n := 0
	for n < len(bytes) && bytes[n] != 0 {
		n++
	}
	return string(bytes[:n])
}

// Sweep deletes the records of flows that were redirected more than ten
// seconds before now and never taken, and says how many: connect() failed
// after the hook, or the connection died in the listener's queue. It costs
// next to nothing while no flow is pending. Call it every second or so; it
// also follows excluded cgroups and devices of exits that came or went.
func (k *Kernel) Sweep(now ledger.Time) int {
	k.refresh()
	if k.pending() == 0 {
		return 0
	}
	var (
		key   egressFlowKey
		value egressFlow
		stale []egressFlowKey
	)
	// Records that come or go during the iteration may end it early; the
	// next Sweep sees the rest.
	for it := k.objs.Flows.Iterate(); it.Next(&key, &value); {
		if ledger.Time(value.At).Add(staleAfter) < now {
			stale = append(stale, key)
		}
	}
	swept := 0
	for i := range stale {
		if k.takeFlow(&stale[i], &value) {
			swept++
		}
	}
	return swept
}

// Pending is the number of connections redirected and not yet taken.
func (k *Kernel) Pending() int { return int(k.pending()) }

func (k *Kernel) pending() uint64 {
	var n uint64
	for i := range k.backlogs {
		n += atomic.LoadUint64(&k.backlogs[i].Pending)
	}
	return n
}

// Negative lets connections from netns to dest go untouched until the given
// time, so that the client's connect() sees the network's own error. It has no
// effect where a budget says fail: closed.
func (k *Kernel) Negative(netns uint64, dest netip.AddrPort, until ledger.Time) error {
	key := egressNegativeKey{
		Dest:  egressAddr{Bytes: dest.Addr().As16()},
		Netns: netns,
		Port:  dest.Port(),
	}
	if err := k.objs.Negatives.Update(&key, uint64(until), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("set negative entry for %s: %w", dest, err)
	}
	return nil
}
