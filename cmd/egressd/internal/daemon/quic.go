// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
)

// quicNames does for QUIC what names does for TCP. Used under names.mu.
type quicNames struct {
	last   map[destination]loader.QUIC
	totals map[labelled]*quicOutcomes
}

// quicOutcomes are sockets and peers, by what became of them.
type quicOutcomes struct{ untouched, refused uint64 }

// countQUIC is count for QUIC. An address has the name that its TCP connections
// showed.
func (n *names) countQUIC(read func() ([]loader.QUIC, error)) ([]metrics.QUIC, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := read()
	q := &n.quic
	if q.totals == nil {
		q.last = make(map[destination]loader.QUIC)
		q.totals = make(map[labelled]*quicOutcomes)
	}
	for _, d := range all {
		key := destination{d.Dest, d.Exit}
		as := labelled{n.label(d.Dest), d.Exit}
		total := q.totals[as]
		if total == nil {
			total = new(quicOutcomes)
			q.totals[as] = total
		}
		last := q.last[key]
		total.untouched += grown(d.Untouched, last.Untouched)
		total.refused += grown(d.Refused, last.Refused)
		q.last[key] = d
	}
	out := make([]metrics.QUIC, 0, len(q.totals))
	for key, t := range q.totals {
		out = append(out, metrics.QUIC{
			Destination: key.label,
			Exit:        key.exit,
			Outcomes:    []metrics.Count{{Label: "untouched", N: t.untouched}, {Label: "refused", N: t.refused}},
		})
	}
	return out, err
}
