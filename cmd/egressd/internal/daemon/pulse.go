// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"sync/atomic"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/proxy"
)

// pulse is the kernel as the proxy knows it, and remembers the last beat of
// the accept loop.
type pulse struct {
	*loader.Kernel
	beat atomic.Uint64
}

var _ proxy.Kernel = (*pulse)(nil)

// Beat implements proxy.Kernel.
func (p *pulse) Beat(now ledger.Time) {
	p.beat.Store(uint64(now))
	p.Kernel.Beat(now)
}

// last is when the accept loop last came round.
func (p *pulse) last() ledger.Time { return ledger.Time(p.beat.Load()) }
