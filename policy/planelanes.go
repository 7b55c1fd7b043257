// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"

	"github.com/egressd/egressd/policy/ledger"
)

// The kernel plane finds lanes by itself, and makes those that it misses with
// spare cells that it was given ahead. Of a lane that both make at the same
// time the kernel's cell wins: connections were counted in it. Of a lane that
// the engine has it never does, since requests that are under way hold its
// cell.

// Errors of Adopt.
var (
	errNoBudget   = errors.New("the policy has no such budget")
	errShape      = errors.New("the budget tells lanes apart by something else")
	errNoSpare    = errors.New("the cell was not given to the kernel plane")
	ErrOtherCell  = errors.New("the lane has another cell")
	errUnreleased = errors.New("the kernel plane keeps another cell for the lane")
)

// SetPlane says where the kernel plane finds the cells of lanes. To be called
// once, before anything is selected; the lanes that were recovered are claimed.
func (e *Engine) SetPlane(p PlaneLanes) {
	e.mu.Lock()
	e.plane = p
	e.mu.Unlock()
	e.Reclaim()
}

// Reclaim claims all lanes anew: for when the kernel plane has come to know
// budgets that it did not know when their lanes were made. A cell that it gave
// to such a lane meanwhile is taken back.
func (e *Engine) Reclaim() {
	e.mu.Lock()
	lanes := make([]*Lane, 0, len(e.lanes))
	for l := range e.lanes {
		lanes = append(lanes, l)
	}
	e.mu.Unlock()
	for _, l := range lanes { // one by one: new lanes do not wait for all of them
		e.mu.Lock()
		if _, lives := e.lanes[l]; lives {
			e.insist(l.Key, l.Number)
		}
		e.mu.Unlock()
	}
}

// claim has the kernel plane know a lane that is being made, and returns the
// number of its cell: n, or that of the cell which the kernel gave it.
func (e *Engine) claim(key LaneKey, n uint32) uint32 {
	if e.plane == nil {
		return n
	}
	have, err := e.plane.Claim(key, n)
	if err != nil {
		e.dropped.Add(1) // the lane works, for the proxy alone
		return n
	}
	if _, made := e.spares[have]; made {
		delete(e.spares, have)
		return have
	}
	if have != n { // what a lane that is no more left behind
		e.insist(key, n)
	}
	return n
}

// insist has the kernel plane know that the lane has cell n and no other.
func (e *Engine) insist(key LaneKey, n uint32) {
	if e.plane == nil {
		return
	}
	have, err := e.plane.Claim(key, n)
	if err == nil && have != n {
		if err = e.plane.Release(key); err == nil {
			e.unspare(have)
			if have, err = e.plane.Claim(key, n); err == nil && have != n {
				err = errUnreleased
			}
		}
	}
	if err != nil {
		e.dropped.Add(1)
	}
}

// release has the kernel plane forget a lane. A connection that it is just
// deciding may still take from the cell.
func (e *Engine) release(key LaneKey) {
	if e.plane == nil {
		return
	}
	if err := e.plane.Release(key); err != nil {
		e.dropped.Add(1)
	}
}

// Spare takes a free cell, blank, for the kernel plane to make a lane with. It
// counts as in use until Adopt or Unspare. false: there is none.
func (e *Engine) Spare(now ledger.Time) (n uint32, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n, ok = e.allocate(now); !ok {
		return 0, false
	}
	e.cells[n].Reset()
	e.spares[n] = struct{}{}
	return n, true
}

// Unspare takes a cell back that Spare gave, and that the kernel plane has no
// more. It does nothing where the cell has become a lane's.
func (e *Engine) Unspare(n uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unspare(n)
}

func (e *Engine) unspare(n uint32) {
	if _, spare := e.spares[n]; spare {
		delete(e.spares, n)
		e.free = append(e.free, n)
	}
}

// Adopt makes a lane of one that the kernel plane made with the spare cell n.
// Its state is kept; limits that are not those of the budget are put right. To
// adopt a lane that has that cell already is no error.
//
// After an error the kernel plane is to forget the cell, and it is to be taken
// back by Unspare. With ErrOtherCell comes the lane that exists: then the
// kernel plane is to know that lane's cell in its place.
//
// Spare, Unspare and Adopt are for one goroutine: else a cell could be taken
// back that was just given anew.
func (e *Engine) Adopt(key LaneKey, n uint32, now ledger.Time) (*Lane, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fail := func(l *Lane, err error) (*Lane, error) {
		return l, fmt.Errorf("adopt lane %s with cell %d: %w", key, n, err)
	}
	s := e.state.Load()
	r := s.rules[e.owners[key.Budget]]
	switch {
	case r == nil || r.Mode == Off:
		return fail(nil, errNoBudget)
	case !r.shapes(key):
		return fail(nil, errShape)
	}
	if l := e.find(r.owner, &key, e.hash(r.owner, e.hashOf(key.Destination), &key)); l != nil {
		if l.Number != n {
			return fail(l, ErrOtherCell)
		}
		return l, nil
	}
	if _, spare := e.spares[n]; !spare {
		return fail(nil, errNoSpare)
	}
	delete(e.spares, n)
	l := e.newLane(r, key.clone(), r.labelOf(s.matcher, key), n, &e.cells[n], now)
	e.keep(l)
	return l, nil
}
