// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
)

// Pacing is what there is to keep SYNs until their turn.
type Pacing struct {
	// Netns is the cookie of the namespace whose devices are paced.
	Netns uint64
	// Limit is the longest time that they keep a packet; 0: none does.
	Limit time.Duration
	// Outside are the destinations that may leave by a device that is not
	// paced, the namespace's own addresses among them.
	Outside []netip.Prefix
	// Devices are the indexes of the devices that are paced, for sockets that
	// are bound to one.
	Devices []uint32
}

// PaceProgram is the program for the way out of devices that have fq. It is the
// Kernel's, and valid until Close.
func (k *Kernel) PaceProgram() *ebpf.Program { return k.objs.EgressdPace }

// SetPacing says which connections can be held by a device: their SYN gets a
// time, and fq keeps it until then. Until it is called none can. While it works,
// and after an error, none can either.
func (k *Kernel) SetPacing(p Pacing) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	atomic.StoreUint64(&k.control.PaceLimit, 0)
	if p.Limit <= 0 {
		return nil
	}
	devices := make(map[uint32]uint8, len(p.Devices))
	for _, index := range p.Devices {
		devices[index] = 1
	}
	if err := syncMap(k.objs.PaceDevices, k.plane.devices, devices); err != nil {
		return fmt.Errorf("set paced devices: %w", err)
	}
	outside := make(map[egressPrefix]uint8, len(p.Outside))
	for _, prefix := range p.Outside {
		outside[prefixKey(canonical(prefix))] = 1
	}
	if err := syncMap(k.objs.PaceOutside, k.plane.outside, outside); err != nil {
		return fmt.Errorf("set destinations that are not paced: %w", err)
	}
	atomic.StoreUint64(&k.control.PaceNetns, p.Netns)
	atomic.StoreUint64(&k.control.PaceLimit, uint64(p.Limit))
	return nil
}
