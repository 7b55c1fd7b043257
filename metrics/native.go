// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/egressd/egressd/policy"
)

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

// anyName is the description of native histograms on their way into others.
var anyName = prometheus.NewDesc("native", "A native histogram.", nil, nil)

// native adds the fine buckets of h to out. The client library has metrics of
// constant values with classic buckets or with native ones, not with both.
func native(h policy.Histogram, out *dto.Histogram) error {
	var m dto.Metric
	metric, err := prometheus.NewConstNativeHistogram(anyName, h.Count(), h.Sum, h.Fine, nil, zeros(h), policy.FineSchema, 0, time.Time{})
	if err == nil {
		err = metric.Write(&m)
	}
	if err != nil {
		return err
	}
	n := m.Histogram
	out.Schema, out.ZeroThreshold, out.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	out.PositiveSpan, out.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	return nil
}
