// SPDX-License-Identifier: Apache-2.0

package top

import (
	"math"
	"strings"
)

// marks are the characters that something is drawn with.
type marks struct {
	bars              []rune // of a sparkline, from nothing to most
	full, empty       string // of a gauge
	upDown, leftRight string // keys
}

var (
	blocks  = marks{[]rune(" ▁▂▃▄▅▆▇█"), "█", "░", "↑↓", "←→"}
	letters = marks{[]rune(" .:-=+*#"), "#", ".", "up/down", "left/right"}
)

func (v *view) marks() *marks {
	if v.cfg.ASCII {
		return &letters
	}
	return &blocks
}

// plain takes out what a terminal without more than ASCII cannot show.
func (v *view) plain(s string) string {
	if !v.cfg.ASCII {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '…':
			return '~'
		case r >= 0x7f:
			return '?'
		}
		return r
	}, s)
}

// sparkline draws numbers against the greatest of them.
func (m *marks) sparkline(all []uint64) string {
	most := uint64(1)
	for _, n := range all {
		most = max(most, n)
	}
	var out strings.Builder
	for _, n := range all {
		// Whatever is not nothing shows.
		out.WriteRune(m.bars[(n*uint64(len(m.bars)-1)+most-1)/most])
	}
	return out.String()
}

// gaugeWidth is the number of characters of a gauge.
const gaugeWidth = 6

// gauge draws a share from 0 to 1. What is left of something shows until the end.
func (m *marks) gauge(share float64) string {
	n := int(math.Ceil(min(max(share, 0), 1) * gaugeWidth))
	return strings.Repeat(m.full, n) + strings.Repeat(m.empty, gaugeWidth-n)
}
