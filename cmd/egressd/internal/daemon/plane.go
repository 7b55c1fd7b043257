// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/pacer"
	"github.com/egressd/egressd/policy"
)

// planeEvery is how soon the engine knows of lanes that the programs made.
const planeEvery = 100 * time.Millisecond

// spareCells is how many cells the programs have for lanes that they make, of a
// ledger that has at least spareShare times as many.
const (
	spareCells = 512
	spareShare = 8
)

// plane is the daemon's part in the kernel plane: it gives the programs cells,
// takes over the lanes that they made, and follows the devices that can hold a
// SYN.
type plane struct {
	used  atomic.Bool              // some budget is the kernel's
	asks  atomic.Pointer[[]uint16] // ports where budgets name hosts
	cells sync.Mutex               // held while the programs get cells or give them back

	mu    sync.Mutex
	pacer *pacer.Pacer // nil: none is needed
	netns uint64
}

// planned readies the kernel plane for the redirects of a new policy, which the
// programs know by now.
func (d *Daemon) planned(r *policy.Redirects) error {
	var asks []uint16
	for _, p := range r.Ports {
		if p.Ask {
			asks = append(asks, p.Port)
		}
	}
	d.plane.asks.Store(&asks)
	d.plane.used.Store(r.KernelPlane())
	// Budgets that the programs did not know until now may have lanes.
	d.engine.Reclaim()
	for _, dest := range d.kernel.Targets() {
		if slices.Contains(asks, dest.Port()) {
			continue
		}
		if err := d.kernel.DeleteTarget(dest); err != nil {
			return err
		}
	}
	d.dns.retell()
	d.plane.cells.Lock()
	defer d.plane.cells.Unlock()
	return d.fillSpares()
}

// renamed tells the programs what holds for an address whose names are others
// than before.
func (d *Daemon) renamed(addr netip.Addr, names []string) {
	asks := d.plane.asks.Load()
	if asks == nil {
		return
	}
	for _, port := range *asks {
		dest := netip.AddrPortFrom(addr, port)
		var err error
		if t, known := d.engine.Target(dest, names); known {
			err = d.kernel.SetTarget(dest, t)
		} else {
			err = d.kernel.DeleteTarget(dest)
		}
		if err != nil {
			d.log.Warn("the proxy decides by name what the kernel plane could", "dest", dest, "err", err)
		}
	}
}

// tendPlane takes over the lanes that the programs made, and gives them cells
// for more.
func (d *Daemon) tendPlane() {
	d.plane.cells.Lock()
	defer d.plane.cells.Unlock()
	type other struct {
		key  policy.LaneKey
		cell uint32
	}
	var others []other
	err := d.kernel.Plane().Made(func(key policy.LaneKey, cell uint32) error {
		lane, err := d.engine.Adopt(key, cell, d.clock.Now())
		if err == nil {
			return nil
		}
		d.engine.Unspare(cell)
		if errors.Is(err, policy.ErrOtherCell) {
			others = append(others, other{key, lane.Number})
		}
		return err
	})
	for _, o := range others {
		if _, e := d.kernel.Plane().Claim(o.key, o.cell); e != nil {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		d.log.Warn("lanes of the kernel plane", "err", err)
	}
	if err := d.fillSpares(); err != nil {
		d.log.Warn("the kernel plane has too few cells", "err", err)
	}
}

// fillSpares gives the programs cells, if a budget is theirs at all. Under
// plane.cells.
func (d *Daemon) fillSpares() error {
	if !d.plane.used.Load() {
		return nil
	}
	x := d.kernel.Plane()
	for want := min(spareCells, int64(len(d.kernel.Cells())/spareShare)); x.Spares() < want; {
		n, ok := d.engine.Spare(d.clock.Now())
		if !ok {
			return nil // the ledger is full: the proxy has a lane for what is left
		}
		if took, err := x.Spare(n); !took {
			d.engine.Unspare(n)
			return err
		}
	}
	return nil
}

// pace opens the pacer of the daemon's own namespace while the policy has use
// for it, and closes it when it has none any more. Without a pacer connections
// are held by the proxy.
func (d *Daemon) pace(p *policy.Policy) {
	d.plane.mu.Lock()
	defer d.plane.mu.Unlock()
	install := p.Qdisc == policy.QdiscFQ
	wanted := d.plane.used.Load() || install
	var err error
	switch {
	case !wanted:
		err = d.closePacer()
	case d.plane.pacer != nil:
		d.plane.pacer.SetInstall(install)
	default:
		err = d.openPacer(install)
	}
	if err != nil {
		d.log.Warn("connections are held by the proxy, not by fq", "err", err)
	}
}

func (d *Daemon) openPacer(install bool) (err error) {
	if d.plane.netns, err = loader.NetnsCookie(); err != nil {
		return err
	}
	d.plane.pacer, err = pacer.Open(pacer.Config{
		Program: d.kernel.PaceProgram(),
		Install: install,
		Logger:  d.log,
		Changed: d.paced,
	})
	return err
}

// unpace ends pacing.
func (d *Daemon) unpace() error {
	d.plane.mu.Lock()
	defer d.plane.mu.Unlock()
	return d.closePacer()
}

func (d *Daemon) closePacer() error {
	if d.plane.pacer == nil {
		return nil
	}
	err := d.plane.pacer.Close()
	d.plane.pacer = nil
	if err != nil {
		return fmt.Errorf("end pacing: %w", err)
	}
	return nil
}

// horizonMargin is what a turn keeps away from the horizon of fq, which drops
// what lies beyond: clocks of CPUs differ, and packets take time to get there.
const horizonMargin = 100 * time.Millisecond

// paced tells the programs what devices can hold.
func (d *Daemon) paced(s pacer.State) {
	p := loader.Pacing{Netns: d.plane.netns}
	if s.Ready {
		p.Limit = s.Horizon - horizonMargin
		p.Outside = s.Outside
		for _, device := range s.Devices {
			if device.Paced {
				p.Devices = append(p.Devices, uint32(device.Index))
			}
		}
	}
	if err := d.kernel.SetPacing(p); err != nil {
		d.log.Warn("connections are held by the proxy, not by fq", "err", err)
	}
}
