// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"time"
)

// Dist is a distribution of durations. The zero Dist is always zero.
type Dist struct {
	kind distKind
	a, b time.Duration
}

type distKind uint8

const (
	constant    distKind = iota // a
	uniform                     // from a to b
	exponential                 // of mean a
)

// draw takes a sample. A constant takes nothing from r.
func (d Dist) draw(r *rand.Rand) time.Duration {
	switch d.kind {
	case uniform:
		return d.a + between(0, d.b-d.a, r)
	case exponential:
		return time.Duration(r.ExpFloat64() * float64(d.a))
	}
	return d.a
}

// between is uniform in [low, high).
func between(low, high time.Duration, r *rand.Rand) time.Duration {
	return low + time.Duration(r.Float64()*float64(high-low))
}
