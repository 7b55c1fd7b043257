// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy/ledger"
)

func TestExitOf(t *testing.T) {
	source := netip.MustParseAddr("203.0.113.7")
	p := &Policy{Exits: []Exit{
		{Name: "gw", Proxy: &Proxy{Host: "gw.test", First: 1, Last: 1}},
		{Name: "alias", Source: source},
		{Name: "root", UIDs: UIDRange{Set: true}},
		{Name: "wg0", Interface: "wg0"},
		{Name: "wg1", Interface: "wg1", SameAs: "wg0"},
		{Name: "blue", Mark: 7},
		{Name: "users", UIDs: UIDRange{First: 1000, Last: 1999, Set: true}},
	}}
	other := netip.MustParseAddr("203.0.113.8")
	for _, tc := range []struct {
		source    netip.Addr
		device    string
		mark, uid uint32
		want      string
	}{
		{want: "root"},
		{uid: 1, want: DirectExit},
		{source: other, device: "eth0", mark: 8, uid: 2000, want: DirectExit},
		{source: source, device: "wg0", uid: 1, want: "alias"},
		{source: netip.MustParseAddr("::ffff:203.0.113.7"), uid: 1, want: "alias"},
		{source: other, device: "wg0", want: "root"},
		{source: other, device: "wg0", mark: 7, uid: 1000, want: "wg0"},
		{device: "wg1", uid: 1, want: "wg0"},
		{mark: 7, uid: 1000, want: "blue"},
		{uid: 1000, want: "users"},
		{uid: 1999, want: "users"},
		{uid: 2000, want: DirectExit},
	} {
		if got := p.ExitOf(tc.source, tc.device, tc.mark, tc.uid); got != tc.want {
			t.Errorf("%+v: exit is %s", tc, got)
		}
	}
	for _, tc := range []struct {
		exits []Exit
		want  bool
	}{
		{nil, false},
		{[]Exit{p.Exits[0], p.Exits[2], p.Exits[5]}, false},
		{[]Exit{p.Exits[0], p.Exits[1]}, true},
		{[]Exit{p.Exits[3]}, true},
	} {
		if got := (&Policy{Exits: tc.exits}).ExitsByRoute(); got != tc.want {
			t.Errorf("%v: by route %v", tc.exits, got)
		}
	}
}

// The lane for trouble of exits makes nobody be looked into, and is closed by
// no limit of a destination.
func TestExitBudgetIsForTroubleAlone(t *testing.T) {
	e := gatewayEngine(t)
	dest := netip.MustParseAddrPort("192.0.2.1:80")
	if e.Wants("origin.test", dest) {
		t.Error("something wants a host that no budget names")
	}
	lanes := e.Select(nil, &Facts{Host: "origin.test", Dest: dest, Exit: "gw", Proxied: true}, ForRequest, 1)
	if len(lanes) != 1 || lanes[0].Key.Budget != ExitBudget {
		t.Fatalf("lanes are %v, want the one for trouble", lanes)
	}
	if l := Target(lanes); l != nil {
		t.Errorf("a limit would touch %s", l.ID())
	}
}

func gatewayEngine(t *testing.T) *Engine {
	t.Helper()
	p := &Policy{Exits: []Exit{{Name: "gw", Proxy: &Proxy{Host: "gw.test", First: 80, Last: 80}}}}
	e, err := NewEngine(p, make([]ledger.Cell, 16), nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
