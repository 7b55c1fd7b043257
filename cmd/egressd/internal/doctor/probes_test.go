// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func TestProbes(t *testing.T) {
	observing := &policy.Policy{TLS: policy.TLS{Uprobes: true}, Budgets: []*policy.Budget{{TLS: policy.Observe}}}
	without := &policy.Policy{TLS: policy.TLS{Mode: policy.Observe}}
	for _, tc := range []struct {
		name       string
		policy     *policy.Policy
		privileged bool
		unsafe     []string
		price      time.Duration
		err        error
		status     Status
		finding    string
	}{
		{"not asked for", without, true, nil, 0, nil, OK, "not asked for"},
		{"no root", observing, false, nil, 0, nil, Warn, "not checked"},
		{"unsafe", observing, true, []string{"this", "that"}, 0, nil, Warn, "off, as this; that"},
		{"cannot be placed", observing, true, nil, 0, errors.New("no uprobes"), Warn, "no uprobes"},
		{"dear", observing, true, nil, 20 * time.Microsecond, nil, Warn, "costs 20µs"},
		{"cheap", observing, true, nil, 900 * time.Nanosecond, nil, OK, "costs 900ns"},
	} {
		c := checkProbes(tc.policy, Probes{
			Unsafe: func() ([]string, error) { return tc.unsafe, nil },
			Price:  func() (time.Duration, error) { return tc.price, tc.err },
		}, tc.privileged)
		if c.Status != tc.status || !strings.Contains(c.Finding, tc.finding) || (c.Status != OK && c.Remedy == "") {
			t.Errorf("%s: %+v", tc.name, c)
		}
	}
}
