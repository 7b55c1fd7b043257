// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Recent is the number of requests in each of the seconds before the present
// one, the oldest first: at most n and those that are remembered, and none from
// before the first request. They end at until.
func (m *ExitMeter) Recent(n int, now ledger.Time) (counts []float64, until ledger.Time) {
	second := uint64(now) / uint64(time.Second)
	m.mu.Lock()
	defer m.mu.Unlock()
	counts = m.seconds.window(make([]float64, 0, max(0, min(n, maxSlots))), second)
	return counts, ledger.Time(second * uint64(time.Second))
}
