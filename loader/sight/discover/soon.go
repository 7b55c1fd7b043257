// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"sync/atomic"
	"time"
)

// What may block for ever: the memory map of a process that is stuck in the
// kernel, and files of a network that is away. Such a call is left behind; while
// too many are, none is begun.
const (
	patience = 5 * time.Second
	maxStuck = 8
)

var errStuck = errors.New("the kernel does not answer")

// waiting counts the calls that were left behind.
type waiting struct{ stuck atomic.Int32 }

// soon returns what f does, or an error if that takes longer than a few
// seconds. A late value goes to drop.
func soon[T any](w *waiting, f func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if w.stuck.Load() >= maxStuck {
		return none, errStuck
	}
	done := make(chan result)
	given := make(chan struct{})
	go func() {
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-given:
			w.stuck.Add(-1)
			if err == nil && drop != nil {
				drop(v)
			}
		}
	}()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-t.C:
		w.stuck.Add(1)
		close(given)
		return none, errStuck
	}
}
