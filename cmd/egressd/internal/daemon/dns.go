// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/dns"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	nametable "github.com/egressd/egressd/policy/names"
	"github.com/egressd/egressd/userspace/dnsmsg"
)

// dnsNames learns the names of addresses from the DNS answers that shaped
// processes receive.
type dnsNames struct {
	log   *slog.Logger
	scope policy.Scope
	now   func() ledger.Time
	// changed, if set, is told of addresses whose names are others than before,
	// one at a time; none means that nothing is known. Set before run.
	changed func(addr netip.Addr, names []string)
	opened  chan struct{} // closed once there is a reader

	applying sync.Mutex
	reader   *dns.Reader // nil before opened is closed
	exclude  []string
	on       bool

	// telling is held from a change of the table until it is told, so that
	// what is told last is the last.
	telling sync.Mutex
	pending []naming

	mu     sync.Mutex // held for moments
	table  *nametable.Table
	counts dnsOutcomes
}

// naming is a change that is still to be told.
type naming struct {
	addr  netip.Addr
	names []string
}

// dnsOutcomes are messages that were read, by what came of them.
type dnsOutcomes struct {
	learned, nothing, malformed uint64
}

func newDNSNames(log *slog.Logger, scope policy.Scope, now func() ledger.Time) *dnsNames {
	d := &dnsNames{log: log, scope: scope, now: now, opened: make(chan struct{})}
	d.table = nametable.New(nametable.Config{Changed: func(addr netip.Addr, names []string) {
		d.pending = append(d.pending, naming{addr, names})
	}})
	return d
}

// apply has answers read if the policy names hosts, and only then. What cannot be
// had is told, and no reason not to start: all that names hosts is decided by the
// proxy then.
func (d *dnsNames) apply(p *policy.Policy) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.exclude = p.Scope.Exclude
	d.on = namesHosts(p)
	if err := d.attach(); err != nil {
		d.log.Warn("DNS answers are not read: addresses have no names", "err", err)
	}
}

// attach puts the reader where d.on says that it belongs.
func (d *dnsNames) attach() (err error) {
	switch {
	case !d.on && d.reader == nil:
		return nil
	case !d.on:
		return d.reader.Detach()
	case d.reader == nil:
		r, err := dns.Open(dns.Config{Cgroups: d.scope.Cgroups})
		if err != nil {
			return err
		}
		d.reader = r
		close(d.opened)
	}
	// First, so that nothing is seen that should not be.
	if err := d.reader.Exclude(d.exclude); err != nil {
		return err
	}
	return d.reader.Attach()
}

// namesHosts reports whether some budget tells hosts by their names.
func namesHosts(p *policy.Policy) bool {
	for _, b := range p.Budgets {
		for _, h := range b.Match.Hosts {
			if b.Mode == policy.Off {
				continue
			}
			if _, err := netip.ParseAddr(h.Name); h.Suffix != "" || h.Name != "" && err != nil {
				return true
			}
		}
	}
	return false
}

// run reads until ctx ends.
func (d *dnsNames) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.opened:
	}
	var g errgroup.Group
	g.Go(func() error { return d.reader.Run(ctx, d.take) })
	g.Go(func() error { return every(ctx, sweepEvery, d.sweep) })
	return g.Wait()
}

// take learns from a message.
func (d *dnsNames) take(m *dns.Message) {
	a, err := dnsmsg.Parse(m.Data)
	d.change(func() {
		switch {
		case err == nil:
			d.counts.learned++
			for _, addr := range a.Addrs {
				d.table.Learn(m.Time, addr.Addr, a.Name, addr.TTL)
			}
		case errors.Is(err, dnsmsg.ErrNoAnswer), errors.Is(err, dnsmsg.ErrNotAddresses), errors.Is(err, dnsmsg.ErrName):
			d.counts.nothing++
		default:
			d.counts.malformed++
		}
	})
}

// sweep forgets names that have ended, and follows excluded cgroups.
func (d *dnsNames) sweep() {
	d.change(func() { d.table.Expire(d.now()) })
	d.applying.Lock()
	defer d.applying.Unlock()
	if err := d.reader.Exclude(d.exclude); err != nil {
		d.log.Warn("follow cgroups whose DNS answers are not read", "err", err)
	}
}

// change changes the table with f, then tells what is new.
func (d *dnsNames) change(f func()) {
	d.telling.Lock()
	defer d.telling.Unlock()
	d.mu.Lock()
	f()
	d.mu.Unlock()
	for _, n := range d.pending {
		if d.changed != nil {
			d.changed(n.addr, n.names)
		}
	}
	clear(d.pending)
	d.pending = d.pending[:0]
}

// retell tells of all addresses that have names, as if they had changed: what
// follows from the names is other under a new policy.
func (d *dnsNames) retell() {
	d.change(func() {
		d.table.Range(d.now(), func(addr netip.Addr, names []string) {
			d.pending = append(d.pending, naming{addr, names})
		})
	})
}

// names are those that addr has now.
func (d *dnsNames) names(addr netip.Addr) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Names(addr, d.now())
}

// label is the label that connections to dest have, if all names of its address
// lead to the same: only then is it known which was meant.
func (d *dnsNames) label(dest netip.AddrPort, labelOf func(host string, dest netip.AddrPort) (string, bool)) (label string, ok bool) {
	for i, name := range d.names(dest.Addr()) {
		one, known := labelOf(name, dest)
		if !known || i > 0 && one != label {
			return "", false
		}
		label, ok = one, true
	}
	return label, ok
}

// DNSCounts are DNS messages that sockets of shaped cgroups received, by what
// became of them, and what is known from them.
type DNSCounts struct {
	// Kernel counts what came by; of Kernel.Sent the next three are what was
	// read so far.
	Kernel    dns.Counts
	Learned   uint64 // told an address
	Nothing   uint64 // told none
	Malformed uint64
	Table     nametable.Counts
	Program   loader.Program // what reading costs
}

// DNS counts. All is zero where answers are not read.
func (d *Daemon) DNS() (DNSCounts, error) { return d.dns.count() }

func (d *dnsNames) count() (c DNSCounts, err error) {
	d.mu.Lock()
	c.Learned, c.Nothing, c.Malformed = d.counts.learned, d.counts.nothing, d.counts.malformed
	c.Table = d.table.Counts()
	d.mu.Unlock()
	d.applying.Lock()
	defer d.applying.Unlock()
	if d.reader == nil {
		return c, nil
	}
	if c.Kernel, err = d.reader.Counts(); err != nil {
		return DNSCounts{}, err
	}
	if c.Program, err = d.reader.Program(); err != nil {
		return DNSCounts{}, err
	}
	return c, nil
}

// close takes the reader off.
func (d *dnsNames) close() error {
	d.applying.Lock()
	defer d.applying.Unlock()
	if d.reader == nil {
		return nil
	}
	return d.reader.Close()
}
