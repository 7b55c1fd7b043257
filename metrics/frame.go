// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/policy"
)

// frame is what one scrape shows, in the order of names and labels. It does not
// change any more, whatever later scrapes do, so that it can be encoded while
// those go on.
type frame []framed

// framed is what a frame shows of a family.
type framed struct {
	*family
	series []*series
	values []float64   // of counters and gauges
	sums   []histogram // of histograms
}

// histogram is one of a frame.
type histogram struct {
	policy.Histogram
	layout *layout
}

// frame takes down what was met in the scrape that is under way.
func (c *Collector) frame() frame {
	out := make(frame, 0, len(c.families))
	for _, f := range c.families {
		if f.live > 0 {
			out = append(out, f.frame())
		}
	}
	return out
}

func (f *family) frame() framed {
	if !f.sorted {
		slices.SortFunc(f.series, compare)
		f.sorted = true
	}
	out := framed{family: f, series: make([]*series, 0, f.live)}
	for _, s := range f.series {
		if s.seen == f.c.scrapes {
			out.series = append(out.series, s)
		}
	}
	if f.Type != Histogram {
		out.values = make([]float64, len(out.series))
		for i, s := range out.series {
			out.values[i] = s.value
		}
		return out
	}
	n := 0
	for _, s := range out.series {
		n += len(s.sum.Counts)
	}
	counts := make([]uint64, 0, n) // of all
	out.sums = make([]histogram, len(out.series))
	for i, s := range out.series {
		begin := len(counts)
		counts = append(counts, s.sum.Counts...)
		out.sums[i] = histogram{s.sum, s.layout}
		out.sums[i].Counts = counts[begin:len(counts):len(counts)]
	}
	return out
}

// families are the frame as the client library has it. What they point at may
// belong to later frames, too: nothing of it may be changed.
func (f frame) families() ([]*dto.MetricFamily, error) {
	out := make([]*dto.MetricFamily, len(f))
	for i := range f {
		metrics, err := f[i].metrics()
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", f[i].Name, err)
		}
		out[i] = &dto.MetricFamily{Name: &f[i].Name, Help: &f[i].Help, Type: f[i].kind.Enum(), Metric: metrics}
	}
	return out, nil
}

// metrics are the series of a family. What they are made of lies side by
// side: tens of thousands of small objects would cost more than their
// encoding.
func (f *framed) metrics() (_ []*dto.Metric, err error) {
	n := len(f.series)
	all, out := make([]dto.Metric, n), make([]*dto.Metric, n)
	for i, s := range f.series {
		all[i].Label, out[i] = s.labels, &all[i]
	}
	switch f.Type {
	case Counter:
		counters := make([]dto.Counter, n)
		for i := range counters {
			counters[i].Value, all[i].Counter = &f.values[i], &counters[i]
		}
	case Gauge:
		gauges := make([]dto.Gauge, n)
		for i := range gauges {
			gauges[i].Value, all[i].Gauge = &f.values[i], &gauges[i]
		}
	case Histogram:
		buckets := 0
		for _, h := range f.sums {
			buckets += len(h.Bounds)
		}
		parts := makeParts(buckets)
		for i := range f.sums {
			if all[i].Histogram, err = f.sums[i].metric(&parts); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// parts are buckets that are not in use yet.
type parts struct {
	buckets  []dto.Bucket
	pointers []*dto.Bucket
	counts   []uint64
}

func makeParts(buckets int) parts {
	return parts{make([]dto.Bucket, buckets), make([]*dto.Bucket, buckets), make([]uint64, buckets)}
}

// metric is the histogram with classic buckets, taken from p, and with native
// ones if it has them. A server that scrapes native histograms takes those,
// every other one the classic buckets.
func (h *histogram) metric(p *parts) (*dto.Histogram, error) {
	n := len(h.Bounds)
	out := &dto.Histogram{SampleSum: &h.Sum, Bucket: p.pointers[:n:n]}
	below := uint64(0)
	for i := range h.Bounds {
		below += h.Counts[i]
		p.counts[i] = below
		p.buckets[i].UpperBound, p.buckets[i].CumulativeCount = &h.layout.bounds[i], &p.counts[i]
		p.pointers[i] = &p.buckets[i]
	}
	out.SampleCount = proto.Uint64(below + h.Counts[n])
	*p = parts{p.buckets[n:], p.pointers[n:], p.counts[n:]}
	if h.Fine != nil {
		return out, native(h.Histogram, out)
	}
	return out, nil
}
