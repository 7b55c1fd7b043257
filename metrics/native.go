// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/egressd/egressd/policy"
)

// dual is a histogram with classic buckets and native ones. A server that
// scrapes native histograms takes those, every other one the classic buckets;
// the client library has metrics of constant values for one or the other only.
type dual struct {
	prometheus.Metric
	native prometheus.Metric
}

// withNative adds the fine buckets of h to its classic histogram.
func withNative(classic prometheus.Metric, desc *prometheus.Desc, h policy.Histogram, labels []string) (prometheus.Metric, error) {
	native, err := prometheus.NewConstNativeHistogram(desc, h.Count(), h.Sum, h.Fine, nil, zeros(h), policy.FineSchema, 0, time.Time{}, labels...)
	if err != nil {
		return nil, err
	}
	return dual{classic, native}, nil
}

// zeros is the number of values that are in no fine bucket: zero where h has
// none, and more than h has zeros where its buckets contradict each other.
func zeros(h policy.Histogram) uint64 {
	if h.Fine == nil {
		return 0
	}
	left := h.Count()
	for _, n := range h.Fine {
		left -= uint64(n)
	}
	return left
}

// Write implements prometheus.Metric.
func (d dual) Write(out *dto.Metric) error {
	var native dto.Metric
	if err := d.native.Write(&native); err != nil {
		return err
	}
	if err := d.Metric.Write(out); err != nil {
		return err
	}
	h, n := out.Histogram, native.Histogram
	h.Schema, h.ZeroThreshold, h.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	h.PositiveSpan, h.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	return nil
}
