// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"net/netip"
	"slices"
	"testing"
)

// What the kernel says of a real namespace, in all tables and both families.
func TestSurvey(t *testing.T) {
	mustNetns(t)
	v0, v1 := mustVeth(t, "v0", "192.0.2.1/24"), mustVeth(t, "v1", "2001:db8::1/64")
	for _, r := range []struct {
		dest, by string
		table    int
	}{
		{"0.0.0.0/0", "v0", 0}, {"0.0.0.0/0", "v1", 100}, {"::/0", "v1", 0}, {"10.0.0.0/8", "v1", 1000}, {"2001:db8:1::/48", "v0", 0},
	} {
		mustRoute(t, r.dest, r.by, r.table)
	}
	s, err := newSurveyor()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var found *survey
	eventually(t, "IPv6 is up", func() bool {
		if found, _, err = s.look(true); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found.routes, func(r route) bool { return r.local && r.dest == netip.MustParsePrefix("2001:db8::1/128") })
	})
	lo := mustLink(t, "lo").Attrs().Index
	for _, want := range []route{
		{netip.MustParsePrefix("0.0.0.0/0"), false, []int{v0}},
		{netip.MustParsePrefix("0.0.0.0/0"), false, []int{v1}},
		{netip.MustParsePrefix("::/0"), false, []int{v1}},
		{netip.MustParsePrefix("10.0.0.0/8"), false, []int{v1}},
		{netip.MustParsePrefix("192.0.2.0/24"), false, []int{v0}},
		{netip.MustParsePrefix("2001:db8::/64"), false, []int{v1}},
		{netip.MustParsePrefix("2001:db8:1::/48"), false, []int{v0}},
		{netip.MustParsePrefix("127.0.0.0/8"), true, []int{lo}},
		{netip.MustParsePrefix("192.0.2.1/32"), true, []int{v0}},
		{netip.MustParsePrefix("::1/128"), true, []int{lo}},
		{netip.MustParsePrefix("2001:db8::1/128"), true, []int{v1}},
	} {
		if !slices.ContainsFunc(found.routes, func(r route) bool {
			return r.dest == want.dest && r.local == want.local && slices.Equal(r.via, want.via)
		}) {
			t.Errorf("got %v, want %v in it", found.routes, want)
		}
	}
	if d := found.links[v0]; d.name != "v0" || !d.up || d.loopback || d.kind != "veth" || d.root.kind != "noqueue" || d.root.handle != 0 || d.queueLength == 0 {
		t.Errorf("got %+v, want v0 as it is", d)
	}
	if d := found.links[lo]; !d.loopback {
		t.Errorf("got %+v, want lo", d)
	}
	// Routes are kept until somebody says that they changed.
	mustRoute(t, "10.9.0.0/16", "v0", 0)
	has := func(r route) bool { return r.dest == netip.MustParsePrefix("10.9.0.0/16") }
	if again, _, err := s.look(false); err != nil || slices.ContainsFunc(again.routes, has) {
		t.Errorf("got %v, %v; want the routes from before", again.routes, err)
	}
	if again, _, err := s.look(true); err != nil || !slices.ContainsFunc(again.routes, has) {
		t.Errorf("got %v, %v; want the new route", again.routes, err)
	}
}
