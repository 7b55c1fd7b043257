// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"os"
	"testing"

	"github.com/egressd/egressd/policy"
)

// A connection to no proxy has the exit that its socket or, where that is bound
// to nothing, its route tells.
func TestLocalExit(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	loopback := netip.MustParseAddr("127.0.0.1")
	other := netip.MustParseAddr("192.0.2.1")
	uid := uint32(os.Geteuid())
	for _, tc := range []struct {
		name  string
		exits []policy.Exit
		known string // by the hook
		want  string
	}{
		{"device", []policy.Exit{{Name: "other", Interface: "other0"}, {Name: "loop", Interface: "lo"}}, policy.DirectExit, "loop"},
		{"source", []policy.Exit{{Name: "other", Source: other}, {Name: "home", Source: loopback}}, policy.DirectExit, "home"},
		{"the first", []policy.Exit{{Name: "loop", Interface: "lo"}, {Name: "home", Source: loopback}}, policy.DirectExit, "loop"},
		{"shared", []policy.Exit{{Name: "home", Source: loopback, SameAs: "loop"}, {Name: "loop", Interface: "lo"}}, policy.DirectExit, "loop"},
		{"none", []policy.Exit{{Name: "other", Source: other}}, policy.DirectExit, policy.DirectExit},
		{"known", []policy.Exit{{Name: "me", UIDs: policy.UIDRange{First: uid, Last: uid, Set: true}}, {Name: "loop", Interface: "lo"}}, "me", "me"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := startPolicy(t, Config{}, 0, &policy.Policy{Exits: tc.exits, Budgets: []*policy.Budget{anything()}})
			client := b.connectFlow(policy.Flow{Dest: dest, Exit: tc.known, UID: uid})
			if resp := roundTrip(t, client, simpleGet); resp.StatusCode != 200 {
				t.Errorf("status %d, want 200", resp.StatusCode)
			}
			if f := b.Flows(); len(f) != 1 || f[0].Exit != tc.want {
				t.Errorf("flows are %+v, want one by exit %s", f, tc.want)
			}
			b.wantGranted("test/origin.test/" + tc.want + " 1")
			if got := b.engine.Meter(tc.want).Highest(); got != 1 {
				t.Errorf("the meter of the exit counted %d, want 1", got)
			}
		})
	}
}

// What goes to the address of a proxy that is no exit any more is direct.
func TestExitOfAnotherPolicy(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	b := startVia(t, gateway(), anything())
	client := b.connect(dest)
	request := "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n"
	roundTrip(t, client, request)
	b.exit = nil
	clear(b.named)
	b.engine.SetEndpoints(nil)
	roundTrip(t, client, request) // the connection stands, and so does its exit
	roundTrip(t, b.connect(dest), request)
	b.wantGranted("exits/-/gw 2", "test/origin.test/direct 1", "test/origin.test/gw 2")
}

func TestSite(t *testing.T) {
	for host, want := range map[string]string{
		"www.store.example.com": "example.com",
		"example.com":           "example.com",
		"com":                   "com",
		"a.b.shop.co.uk":        "shop.co.uk",
		"co.uk":                 "co.uk",
		"me.github.io":          "me.github.io",
		"www.me.github.io":      "me.github.io",
		"www.ck":                "www.ck",
		"a.b.c.kawasaki.jp":     "b.c.kawasaki.jp",
		"a.origin.test":         "origin.test",
		"localhost":             "localhost",
		"192.0.2.1":             "192.0.2.1",
		"2001:db8::1":           "2001:db8::1",
	} {
		if got := site(host); got != want {
			t.Errorf("site of %s is %s, want %s", host, got, want)
		}
	}
}

// Hosts of one site share the lane of a budget that is by site, directly and
// through tunnels, and CONNECT has paid for the first request.
func TestLanesBySite(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	rule := anything()
	rule.Per = policy.PerSite | policy.PerExit
	b := startVia(t, gateway(), rule)
	b.exit = nil
	direct := b.connect(dest)
	b.exit = &b.engine.Policy().Exits[0]
	roundTrip(t, direct, "GET / HTTP/1.1\r\nHost: a.store.example.com\r\n\r\n")
	roundTrip(t, direct, "GET / HTTP/1.1\r\nHost: b.store.example.com\r\n\r\n")
	client, proxy := b.tunnel("www.store.example.com:80")
	inner := "GET / HTTP/1.1\r\nHost: api.store.example.com\r\n\r\n"
	exchangeOf(t, client, proxy, inner, shortAnswer)
	exchangeOf(t, client, proxy, inner, shortAnswer)
	b.wantGranted("exits/-/gw 2", "test/example.com/direct 2", "test/example.com/gw 2")
}
