// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const (
	watchEvery = time.Second
	// hungAfter is how many looks in a row must find a loop where it was. They
	// are counted, not timed: a process that was stopped and goes on has not
	// hung.
	hungAfter = 5
)

// watch ends the process when an event loop hangs: its connections then break,
// and their clients learn of it, where they would otherwise wait forever. New
// connections have gone untouched since the heartbeat stopped with the loop.
func (p *Proxy) watch(ctx context.Context, every time.Duration) {
	last := make([]uint64, len(p.loops))
	same := make([]int, len(p.loops))
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for i, l := range p.loops {
			turns := l.turns.Load()
			if same[i]++; turns != last[i] {
				last[i], same[i] = turns, 0
			}
			if same[i] >= hungAfter {
				p.cfg.Hung(i)
				return
			}
		}
	}
}

// LastTurn is when the event loop that is furthest behind last came round: never
// long ago while the proxy is well, be it full or idle.
func (p *Proxy) LastTurn() ledger.Time {
	last := ^ledger.Time(0)
	for _, l := range p.loops {
		last = min(last, ledger.Time(l.turned.Load()))
	}
	return last
}

// die is what Config.Hung does by default: it shows where everybody stands.
func die(loop int) {
	debug.SetTraceback("all")
	panic("egressd: event loop " + strconv.Itoa(loop) + " hangs")
}
