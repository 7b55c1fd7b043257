// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/policy"
)

// What is shown again at every scrape is made once: a Collector keeps each
// series it has shown, with its labels as all encodings want them. A scrape
// then finds the series of a pair through two arrays and adds up.

// Other is the value of a label whose own value is not shown.
const Other = "other"

// pair is the part of a label set that configuration, and so the world,
// decides. Families without a destination have it empty.
type pair struct{ destination, exit string }

// more are the labels of a series beside its pair, in the order of the table of
// families.
type more [3]string

// who is a pair and where each family shows it.
type who struct {
	pair
	at     []*place // by family.index; nil where the family has not met it
	missed bool     // some family does not show it by its name
}

// place is what one family shows of a pair, or of all pairs beyond its bound.
type place struct {
	pair
	series []*series
}

// series is one label set of a family. Its labels never change.
type series struct {
	place  *place
	more   more
	labels []*dto.LabelPair // in the order of their names, as are all encodings
	text   string           // name, labels and a space, as the text format has them
	layout *layout          // of a histogram: that of its text

	// Of the scrape whose number is seen.
	seen  uint64
	value float64
	sum   policy.Histogram
}

// who is the pair p, known for the life of the process. Pairs that come when
// too many are remembered are shown as others, and no longer counted.
func (c *Collector) who(p pair) *who {
	if w, ok := c.known[p]; ok {
		return w
	}
	tidy := pair{clean(p.destination), clean(p.exit)}
	w, ok := c.known[tidy]
	switch {
	case len(c.known) >= maxRemembered:
		if !ok {
			w = c.late
		}
		return w
	case !ok:
		w = c.newWho(tidy)
	}
	c.known[tidy], c.known[p] = w, w
	return w
}

func (c *Collector) newWho(p pair) *who { return &who{pair: p, at: make([]*place, len(c.families))} }

// maxRemembered bounds the memory of pairs.
const maxRemembered = 1 << 16

// place is where f shows w. A pair that came in time keeps its name for the
// life of the process, so that a counter never jumps from one series to
// another; a later one is shown as other.
func (f *family) place(w *who) *place {
	if p := w.at[f.index]; p != nil {
		return p
	}
	p := &f.others
	switch {
	case f.isOther(w.pair):
	case f.pairs < f.c.maxPairs:
		f.pairs++
		p = &place{pair: w.pair}
	case !w.missed:
		w.missed = true
		f.c.missed++
	}
	w.at[f.index] = p
	return p
}

// isOther reports whether p has the labels of the pairs that are not shown.
func (f *family) isOther(p pair) bool {
	return p.exit == Other && (p.destination == Other || !f.destination)
}

// find is the series of w with these further labels, at zero if this scrape
// meets it for the first time.
func (f *family) find(w *who, m more) *series {
	p := f.place(w)
	for _, s := range p.series {
		if s.more == m {
			return s.meet(f)
		}
	}
	return f.add(p, m)
}

// add finds or makes the series whose labels are m, made fit.
func (f *family) add(p *place, m more) *series {
	for i := range m {
		m[i] = clean(m[i])
	}
	for _, s := range p.series {
		if s.more == m {
			return s.meet(f)
		}
	}
	s := &series{place: p, more: m}
	s.labels = f.labels(s)
	s.text = prefix(f.Name, s.labels, "")
	p.series = append(p.series, s)
	f.series, f.sorted = append(f.series, s), false
	return s.meet(f)
}

func (s *series) meet(f *family) *series {
	if s.seen != f.c.scrapes {
		s.seen, s.value = f.c.scrapes, 0
		s.sum.Bounds = nil
		f.live++
	}
	return s
}

// labels are those of a series of f, in the order of their names.
func (f *family) labels(s *series) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(f.Labels))
	n := 0
	for _, name := range f.Labels {
		var value string
		switch name {
		case "destination", "from":
			value = s.place.destination
		case "exit", "to":
			value = s.place.exit
		default:
			value = s.more[n]
			n++
		}
		out = append(out, &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)})
	}
	slices.SortFunc(out, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

// compare orders the series of a family as the client library does.
func compare(a, b *series) int {
	for i := range a.labels {
		if n := cmp.Compare(a.labels[i].GetValue(), b.labels[i].GetValue()); n != 0 {
			return n
		}
	}
	return 0
}

// clean makes any text fit for a label: encodings refuse invalid UTF-8, and
// one odd name must not cost the whole scrape.
func clean(label string) string { return strings.ToValidUTF8(label, "\uFFFD") }

// count adds v to a series.
func (f *family) count(w *who, v float64, labels ...string) {
	var m more
	copy(m[:], labels)
	f.find(w, m).value += v
}

// counts adds each of all to the series with its label.
func (f *family) counts(w *who, all []Count) {
	for _, n := range all {
		f.count(w, float64(n.N), n.Label)
	}
}

// atLeast raises a series to v.
func (f *family) atLeast(w *who, v float64) {
	s := f.find(w, more{})
	s.value = max(s.value, v)
}

// merge adds h to a series of histograms. Bounds are one constant of the
// source, so histograms with other bounds are a mistake in it, as are those
// that contradict themselves; they are left out, and counted, rather than mixed.
func (f *family) merge(w *who, h policy.Histogram) {
	if len(h.Counts) == 0 {
		return
	}
	if len(h.Counts) != len(h.Bounds)+1 || zeros(h) > h.Counts[0] {
		f.c.errors.Add(1)
		return
	}
	s := f.find(w, more{})
	if s.sum.Bounds == nil {
		s.begin(f, h)
	} else if !slices.Equal(s.sum.Bounds, h.Bounds) || (s.sum.Fine == nil) != (h.Fine == nil) {
		f.c.errors.Add(1)
		return
	}
	for i, n := range h.Counts {
		s.sum.Counts[i] += n
	}
	s.sum.Sum += h.Sum
	for i, n := range h.Fine {
		s.sum.Fine[i] += n
	}
}

// begin makes s an empty histogram of the kind of h.
func (s *series) begin(f *family, h policy.Histogram) {
	if s.layout == nil || !slices.Equal(s.layout.bounds, h.Bounds) {
		s.layout = newLayout(f.Name, s.labels, h.Bounds)
	}
	counts := s.sum.Counts[:0]
	s.sum = policy.Histogram{Bounds: s.layout.bounds, Counts: append(counts, make([]uint64, len(h.Counts))...)}
	if h.Fine != nil {
		s.sum.Fine = make(map[int]int64, len(h.Fine))
	}
}
