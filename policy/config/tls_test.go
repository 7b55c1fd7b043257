// SPDX-License-Identifier: Apache-2.0

package config

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

// A budget takes of the section tls what it does not say itself, wherever in
// the file the section is.
func TestBudgetsInheritTLS(t *testing.T) {
	for _, c := range []struct {
		name, section string
		budget        string
		mode          policy.TLSMode
		flights       bool
	}{
		{"nothing said", "", "", policy.Passthrough, true},
		{"mode of the section", "tls: {mode: observe}", "", policy.Observe, true},
		{"pace of the section", "tls: {pace: connections}", "", policy.Passthrough, false},
		{"less than the section", "tls: {mode: terminate}", "mode: passthrough", policy.Passthrough, true},
		{"more than the section", "tls: {mode: observe}", "mode: terminate", policy.Terminate, true},
		{"pace alone", "tls: {mode: observe}", "pace: connections", policy.Observe, false},
		{"mode alone", "tls: {pace: connections}", "mode: observe", policy.Observe, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			budgets := "budgets: [{rate: 1/s, tls: {" + c.budget + "}}]"
			for _, text := range []string{budgets + "\n" + c.section, c.section + "\n" + budgets} {
				b := mustParse(t, text).Budgets[0]
				if b.TLS != c.mode || b.Flights != c.flights {
					t.Errorf("%s: got mode %s, flights %v; want %s, %v", text, b.TLS, b.Flights, c.mode, c.flights)
				}
			}
		})
	}
}

func TestSources(t *testing.T) {
	for text, want := range map[string][2]bool{
		"{}":                           {true, true},
		"{sources: [keylog]}":          {true, false},
		"{sources: [uprobes]}":         {false, true},
		"{sources: [uprobes, keylog]}": {true, true},
		"{mode: observe}":              {true, true},
		"{mode: passthrough, sources: [uprobes]}": {false, true},
	} {
		got := mustParse(t, "tls: "+text).TLS
		if [2]bool{got.KeyLog, got.Uprobes} != want {
			t.Errorf("%s: got key log %v, uprobes %v; want %v", text, got.KeyLog, got.Uprobes, want)
		}
	}
}
