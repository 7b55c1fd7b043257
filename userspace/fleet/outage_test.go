// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"
	"time"
)

// TestOneLineForAnOutage plays calls of every 10 ms: which of them the log is told
// of.
func TestOneLineForAnOutage(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct {
		name  string
		calls func(i int) error // of the i-th
		lost  []int             // calls with which it is told that the store is lost
		back  []int
	}{
		{"each tenth call fails", func(i int) error {
			if i%10 == 0 {
				return ErrTimeout
			}
			return nil
		}, nil, nil},
		{"0.2 s without an answer", func(i int) error {
			if i >= 10 && i < 30 {
				return ErrTimeout
			}
			return nil
		}, nil, nil},
		{"0.5 s without an answer, twice", func(i int) error {
			if i%100 >= 50 {
				return ErrDown
			}
			return nil
		}, []int{75, 175}, []int{100, 200}},
		{"a wrong password", func(i int) error {
			if i >= 3 {
				return fmt.Errorf("a call: %w", ErrRefused)
			}
			return nil
		}, []int{3}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var o outage
			var lost, back []int
			for i := range 201 {
				if err := tt.calls(i); err == nil {
					if o.worked() {
						back = append(back, i)
					}
				} else if o.failed(err, start.Add(time.Duration(i)*10*time.Millisecond)) {
					lost = append(lost, i)
				}
			}
			if fmt.Sprint(lost, back) != fmt.Sprint(tt.lost, tt.back) {
				t.Errorf("told of lost at %v and back at %v, want %v and %v", lost, back, tt.lost, tt.back)
			}
		})
	}
}
