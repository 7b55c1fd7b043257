// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

func TestRecent(t *testing.T) {
	at := func(s float64) ledger.Time { return ledger.Time(s * float64(time.Second)) }
	m := &ExitMeter{Exit: DirectExit}
	if got, until := m.Recent(5, at(99.5)); len(got) != 0 || until != at(99) {
		t.Errorf("before the first request: got %v until %v, want nothing until %v", got, until, at(99))
	}
	for _, s := range []float64{100.1, 100.9, 101, 103.999, 104} {
		m.Count(at(s))
	}
	for _, tt := range []struct {
		n     int
		now   float64
		want  []float64
		until float64
	}{
		{10, 100.95, nil, 100},
		{10, 104.5, []float64{2, 1, 0, 1}, 104}, // the present second is not over
		{10, 105, []float64{2, 1, 0, 1, 1}, 105},
		{3, 105.2, []float64{0, 1, 1}, 105},
		{2, 108.2, []float64{0, 0}, 108},
		{0, 105, nil, 105},
		{-1, 105, nil, 105},
	} {
		got, until := m.Recent(tt.n, at(tt.now))
		if !slices.Equal(got, tt.want) || until != at(tt.until) {
			t.Errorf("Recent(%d, %v s) = %v until %v, want %v until %v", tt.n, tt.now, got, until, tt.want, at(tt.until))
		}
	}
	// More than is remembered is not made up.
	if got, _ := m.Recent(10*maxSlots, at(10_000)); len(got) != maxSlots {
		t.Errorf("got %d seconds, want the %d that are remembered", len(got), maxSlots)
	}
}
