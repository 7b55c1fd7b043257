// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"sync"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
)

// maxNames bounds the addresses whose labels are remembered.
const maxNames = 1 << 14

// names turns the kernel's counts, which are by address, into counts by the
// names that the policy file has: an address counts for the label that it was
// last seen to show, or else for that of the names by which DNS knows it. What it
// counted before that stays where it was, so that no count ever falls.
type names struct {
	// dns, if set, has labels for addresses that showed none themselves.
	dns func(netip.AddrPort) (label string, ok bool)
	// addr, if set, has labels for addresses that budgets name.
	addr func(netip.AddrPort) (label string, ok bool)

	labelMu sync.Mutex // held for moments: an event loop may wait for it
	labels  map[netip.AddrPort]string

	mu     sync.Mutex
	last   map[destination]loader.Destination
	totals map[labelled]*outcomes
	quic   quicNames
}

// destination is the key of the kernel's counts.
type destination struct {
	addr netip.AddrPort
	exit string
}

// labelled is the key of the counts that are shown.
type labelled struct{ label, exit string }

// outcomes are attempts to connect, by what became of them.
type outcomes struct {
	redirected, untouched, granted, held, refused uint64
	retransmits, handshakes                       uint64
	handshakeTime                                 time.Duration
}

// saw notes that addr showed a name which label stands for.
func (n *names) saw(addr netip.AddrPort, label string) {
	n.labelMu.Lock()
	defer n.labelMu.Unlock()
	if n.labels == nil {
		n.labels = make(map[netip.AddrPort]string)
	}
	if _, ok := n.labels[addr]; !ok && len(n.labels) >= maxNames {
		// Names move from address to address; those in use are soon back.
		clear(n.labels)
	}
	n.labels[addr] = label
}

// forget drops all labels: a new policy may have others.
func (n *names) forget() {
	n.labelMu.Lock()
	defer n.labelMu.Unlock()
	clear(n.labels)
}

// label is what addr counts for now.
func (n *names) label(addr netip.AddrPort) string {
	n.labelMu.Lock()
	label, ok := n.labels[addr]
	n.labelMu.Unlock()
	if !ok && n.dns != nil {
		label, ok = n.dns(addr)
	}
	if !ok {
		return policy.OtherLabel
	}
	return label
}

// count reads what the kernel has counted, adds what came since the last call
// and returns the sums. An error is that of read; the sums are then as before.
//
// It reads while nobody else counts: of two who read at once, the one that
// counted last could bring the older counts, which would look as if they had
// begun anew.
func (n *names) count(read func() ([]loader.Destination, error)) ([]metrics.Connections, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := read()
	if n.totals == nil {
		n.totals = make(map[labelled]*outcomes)
		n.last = make(map[destination]loader.Destination)
	}
	for _, d := range all {
		key := destination{d.Dest, d.Exit}
		label := n.label(d.Dest)
		if n.addr != nil && label == policy.OtherLabel && d.Granted+d.Held+d.Refused > 0 {
			if l, ok := n.addr(d.Dest); ok { // a budget by address, which the kernel plane knows
				label = l
			}
		}
		total := n.totals[labelled{label, d.Exit}]
		if total == nil {
			total = new(outcomes)
			n.totals[labelled{label, d.Exit}] = total
		}
		last := n.last[key]
		total.redirected += grown(d.Redirected, last.Redirected)
		total.untouched += grown(d.Untouched, last.Untouched)
		total.granted += grown(d.Granted, last.Granted)
		total.held += grown(d.Held, last.Held)
		total.refused += grown(d.Refused, last.Refused)
		total.retransmits += grown(d.Retransmits, last.Retransmits)
		total.handshakes += grown(d.Handshakes, last.Handshakes)
		total.handshakeTime += time.Duration(grown(uint64(d.HandshakeTime), uint64(last.HandshakeTime)))
		n.last[key] = d
	}
	out := make([]metrics.Connections, 0, len(n.totals))
	for key, t := range n.totals {
		out = append(out, metrics.Connections{
			Destination: key.label,
			Exit:        key.exit,
			Outcomes: []metrics.Count{
				{Label: "redirected", N: t.redirected},
				{Label: "untouched", N: t.untouched},
				{Label: "granted", N: t.granted},
				{Label: "held", N: t.held},
				{Label: "refused", N: t.refused},
			},
			Retransmits:   t.retransmits,
			Handshakes:    t.handshakes,
			HandshakeTime: t.handshakeTime,
		})
	}
	return out, err
}

// grown is by how much a counter grew. One that fell was begun anew.
func grown(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
