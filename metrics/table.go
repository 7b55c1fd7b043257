// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressd/egressd/policy"
)

// clean makes any text fit for a label: the client refuses invalid UTF-8, and
// one odd name must not cost the whole scrape.
func clean(label string) string { return strings.ToValidUTF8(label, "\uFFFD") }

// series is one label set: a pair and, in some families, one or two labels
// more.
type series struct {
	pair
	third, fourth string
}

func (s series) compare(t series) int {
	return cmp.Or(cmp.Compare(s.destination, t.destination), cmp.Compare(s.exit, t.exit), cmp.Compare(s.third, t.third), cmp.Compare(s.fourth, t.fourth))
}

// labels are the values for a family of that many labels. A family of one has
// the exit alone.
func (s series) labels(n int) []string {
	all := []string{s.destination, s.exit, s.third, s.fourth}
	if n == 1 {
		return all[1:2]
	}
	return all[:n]
}

// table gathers one family during one scrape, so that what shares its labels
// becomes one series.
type table struct {
	c      *Collector
	name   string
	values map[series]float64
	last   shown
}

func (c *Collector) table(name string) *table {
	return &table{c: c, name: name, values: make(map[series]float64)}
}

// shown is a pair and the one under which a family shows it. Sources give
// what they have of a pair in a row, so the last one is worth remembering.
type shown struct{ pair, as pair }

// of is the pair under which family name shows p.
func (s *shown) of(c *Collector, name string, p pair) pair {
	if s.pair != p || s.as == (pair{}) {
		s.pair, s.as = p, c.limit.admit(name, pair{clean(p.destination), clean(p.exit)})
	}
	return s.as
}

func (t *table) add(p pair, third string, v float64) { t.addBoth(p, third, "", v) }

func (t *table) addBoth(p pair, third, fourth string, v float64) {
	t.values[series{t.last.of(t.c, t.name, p), third, fourth}] += v
}

func (t *table) addAll(p pair, counts []Count) {
	for _, n := range counts {
		t.add(p, n.Label, float64(n.N))
	}
}

func (t *table) atLeast(p pair, v float64) {
	k := series{pair: t.last.of(t.c, t.name, p)}
	t.values[k] = max(t.values[k], v)
}

func (t *table) send(ch chan<- prometheus.Metric, kind prometheus.ValueType) {
	for _, k := range slices.SortedFunc(maps.Keys(t.values), series.compare) {
		t.c.send(ch, t.name, kind, t.values[k], k.labels(t.c.families[t.name].labels)...)
	}
}

// histograms gathers one family of histograms during one scrape.
type histograms struct {
	c      *Collector
	name   string
	merged map[series]policy.Histogram
	last   shown
}

func (c *Collector) histograms(name string) *histograms {
	return &histograms{c: c, name: name, merged: make(map[series]policy.Histogram)}
}

// add merges h into the series of p. Bounds are one constant of the source, so
// histograms with other bounds are a mistake in it; they are left out, and
// counted, rather than mixed.
func (t *histograms) add(p pair, h policy.Histogram) {
	if len(h.Counts) == 0 {
		return
	}
	k := series{pair: t.last.of(t.c, t.name, p)}
	have, ok := t.merged[k]
	if len(h.Counts) != len(h.Bounds)+1 || zeros(h) > h.Counts[0] ||
		ok && (!slices.Equal(have.Bounds, h.Bounds) || (have.Fine == nil) != (h.Fine == nil)) {
		t.c.errors.Add(1)
		return
	}
	if !ok {
		have = policy.Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts))}
		if h.Fine != nil {
			have.Fine = make(map[int]int64, len(h.Fine))
		}
	}
	for i, n := range h.Counts {
		have.Counts[i] += n
	}
	have.Sum += h.Sum
	for i, n := range h.Fine {
		have.Fine[i] += n
	}
	t.merged[k] = have
}

func (t *histograms) send(ch chan<- prometheus.Metric) {
	family := t.c.families[t.name]
	for _, k := range slices.SortedFunc(maps.Keys(t.merged), series.compare) {
		h := t.merged[k]
		buckets := make(map[float64]uint64, len(h.Bounds))
		var below uint64
		for i, bound := range h.Bounds {
			below += h.Counts[i]
			buckets[bound] = below
		}
		labels := k.labels(family.labels)
		m, err := prometheus.NewConstHistogram(family.desc, h.Count(), h.Sum, buckets, labels...)
		if err == nil && h.Fine != nil {
			m, err = withNative(m, family.desc, h, labels)
		}
		if err != nil {
			m = prometheus.NewInvalidMetric(family.desc, err)
		}
		ch <- m
	}
}
