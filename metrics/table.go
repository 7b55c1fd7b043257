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

// series is one label set: a pair and, in some families, one label more.
type series struct {
	pair
	last string
}

func (s series) compare(t series) int {
	return cmp.Or(cmp.Compare(s.destination, t.destination), cmp.Compare(s.exit, t.exit), cmp.Compare(s.last, t.last))
}

// table gathers one family during one scrape, so that what shares its labels
// becomes one series.
type table struct {
	c      *Collector
	name   string
	values map[series]float64
}

func (c *Collector) table(name string) *table {
	return &table{c: c, name: name, values: make(map[series]float64)}
}

// key is the series of family name under which p and last are shown.
func (c *Collector) key(name string, p pair, last string) series {
	p = pair{clean(p.destination), clean(p.exit)}
	return series{c.limit.admit(name, p), last}
}

func (t *table) add(p pair, last string, v float64) {
	t.values[t.c.key(t.name, p, last)] += v
}

func (t *table) addAll(p pair, counts []Count) {
	for _, n := range counts {
		t.add(p, n.Label, float64(n.N))
	}
}

func (t *table) atLeast(p pair, v float64) {
	k := t.c.key(t.name, p, "")
	t.values[k] = max(t.values[k], v)
}

func (t *table) send(ch chan<- prometheus.Metric, kind prometheus.ValueType) {
	for _, k := range slices.SortedFunc(maps.Keys(t.values), series.compare) {
		labels := [...]string{k.destination, k.exit, k.last}
		t.c.send(ch, t.name, kind, t.values[k], labels[:t.c.families[t.name].labels]...)
	}
}

// histograms gathers one family of histograms during one scrape.
type histograms struct {
	c      *Collector
	name   string
	merged map[series]policy.Histogram
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
	k := t.c.key(t.name, p, "")
	have, ok := t.merged[k]
	if len(h.Counts) != len(h.Bounds)+1 || ok && !slices.Equal(have.Bounds, h.Bounds) {
		t.c.errors.Add(1)
		return
	}
	if !ok {
		have = policy.Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts))}
	}
	for i, n := range h.Counts {
		have.Counts[i] += n
	}
	have.Sum += h.Sum
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
		labels := []string{k.destination, k.exit}
		if family.labels == 1 {
			labels = labels[1:]
		}
		m, err := prometheus.NewConstHistogram(family.desc, h.Count(), h.Sum, buckets, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(family.desc, err)
		}
		ch <- m
	}
}
