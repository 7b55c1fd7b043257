// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// Interval is the time between two units at the budget's rate; 0 is no limit.
func (b *Budget) Interval() time.Duration { return b.Rate.Interval() }

// Cooling is how long the lane closes when the origin asked for given, which
// is zero if it named no usable delay. strikes, at least 1, counts the
// penalties since the last success: without a word of the origin each one
// doubles the default, up to a minute.
func (c Cooldown) Cooling(given time.Duration, strikes int) time.Duration {
	const maxBackoff = time.Minute
	d := given
	if d <= 0 {
		d = c.Default
		for ; strikes > 1 && d < maxBackoff; strikes-- {
			d = min(2*d, maxBackoff)
		}
	}
	if c.Max > 0 {
		d = min(d, c.Max)
	}
	return min(d, maxCooldown)
}

// maxCooldown is the sanity maximum: no cooldown is longer.
const maxCooldown = 24 * time.Hour

// Later is the time by which the reopening after delay is put off, so that
// those who counted the same delay do not meet; rnd is uniform in [0, 1).
// It is only ever added: a floor stays a floor.
func (c Cooldown) Later(delay time.Duration, rnd float64) time.Duration {
	const maxSpread = 30 * time.Second
	width := min(c.Spread*float64(delay), float64(maxSpread))
	if width <= 0 || rnd <= 0 {
		return 0
	}
	return time.Duration(width * rnd)
}
