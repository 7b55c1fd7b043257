// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy/ledger"
)

// LabelOf says what the first lane of a request would be labelled.
func TestLabelOf(t *testing.T) {
	budget := func(name string, per Per, hosts ...HostPattern) *Budget {
		return &Budget{Name: name, Per: per, Match: Match{Hosts: hosts, Ports: []uint16{443}}}
	}
	off := budget("off", PerDestination, HostPattern{Name: "off.example"})
	off.Mode = Off
	p := &Policy{Budgets: []*Budget{
		budget("store", PerDestination|PerExit, HostPattern{Suffix: ".store.example"}, HostPattern{Name: "store.example"}),
		budget("all of the store", PerExit, HostPattern{Suffix: ".store.example"}, HostPattern{Prefix: netip.MustParsePrefix("192.0.2.0/24")}),
		budget("bank", 0, HostPattern{Name: "bank.example"}),
		off,
	}}
	e, err := NewEngine(p, make([]ledger.Cell, 16), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ host, dest, want string }{
		{"a.store.example", "198.51.100.1:443", "*.store.example"},
		{"store.example", "198.51.100.1:443", "store.example"},
		{"bank.example", "198.51.100.1:443", "bank.example"},
		{"bank.example", "198.51.100.1:80", ""},
		{"off.example", "198.51.100.1:443", ""},
		{"other.example", "198.51.100.1:443", ""},
		{"other.example", "192.0.2.1:443", "all of the store"},
	} {
		dest := netip.MustParseAddrPort(tt.dest)
		got, ok := e.LabelOf(tt.host, dest)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s at %s: got %q, %t; want %q", tt.host, tt.dest, got, ok, tt.want)
		}
		if lanes := e.Select(nil, &Facts{Host: tt.host, Dest: dest}, ForOpaque, 1); ok && (len(lanes) == 0 || lanes[0].Label != got) {
			t.Errorf("%s at %s: got %q, but its lanes are %v", tt.host, tt.dest, got, lanes)
		}
	}
}
