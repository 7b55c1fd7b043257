// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"testing"
	"time"
)

func TestMemory(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := &memory{now: func() time.Time { return now }}
	a, b := memoryKey{1}, memoryKey{2}
	for i, step := range []struct {
		do    func()
		after time.Duration
		want  string // of a
	}{
		{func() {}, 0, ""},
		{func() { m.refuse(a, WhyShape) }, 0, WhyShape},
		{func() { m.good(b) }, memoryLife - 1, WhyShape},
		{func() {}, 1, ""}, // it ends exactly here
		{func() { m.strike(a, WhyUntrusted) }, 0, ""},
		{func() { m.strike(b, WhyUntrusted) }, 0, ""},
		{func() {}, memoryLife, ""},
		{func() { m.strike(a, WhyUntrusted) }, 0, ""}, // the first one was forgotten
		{func() { m.strike(a, WhyUntrusted) }, 0, WhyUntrusted},
		{func() { m.good(a) }, 0, ""},
		{func() { m.strike(a, WhyUntrusted); m.strike(a, WhyUntrusted) }, 0, ""}, // it went well before
		{func() { m.refuse(a, WhyUntrusted) }, 0, WhyUntrusted},                  // its own word counts
		{func() {}, -time.Hour, WhyUntrusted},
		{func() {}, time.Hour + memoryLife, ""},
	} {
		step.do()
		now = now.Add(step.after)
		if got := m.refused(a); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := &memory{now: time.Now}
	for i := range maxMemory + 10 {
		m.refuse(memoryKey{byte(i), byte(i >> 8)}, WhyShape)
	}
	if len(m.known) != maxMemory || m.order.Len() != maxMemory {
		t.Errorf("got %d and %d, want %d", len(m.known), m.order.Len(), maxMemory)
	}
	if m.refused(memoryKey{}) != "" || m.refused(memoryKey{byte(maxMemory & 0xff), byte(maxMemory >> 8)}) == "" {
		t.Error("the newest were forgotten, not the oldest")
	}
}
