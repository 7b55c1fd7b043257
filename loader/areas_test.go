// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
)

// Wherever a prefix or an endpoint is, the programs look; far from all they do
// not; and both sides agree on which area an address is in.
func TestAreas(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	h := loadWrappers(t, k)
	known := func(addr string) bool {
		t.Helper()
		c := headersAreaCase{Addr: headerAddr(addr)}
		run(t, h.TestArea, &c)
		return c.Known != 0
	}
	prefixes := func(list ...string) (r policy.Redirects) {
		for _, p := range list {
			r.Prefixes = append(r.Prefixes, policy.PrefixRedirect{Prefix: netip.MustParsePrefix(p), Port: 443})
		}
		return r
	}
	endpoints := policy.Redirects{Endpoints: []policy.Endpoint{
		{Addr: netip.MustParseAddrPort("203.0.113.9:8000"), Exit: "gw"},
		{Addr: netip.MustParseAddrPort("[2001:db8::9]:8000"), Exit: "gw"},
	}}
	// One policy after the other, so each step also tests that the one before is
	// forgotten.
	for _, step := range []struct {
		name      string
		redirects policy.Redirects
		in, out   []string
	}{
		{"nothing", policy.Redirects{}, nil, []string{"192.0.2.1", "2001:db8::1", "0.0.0.0", "::"}},
		{
			"one address each", prefixes("192.0.2.1/32", "2001:db8::1/128"),
			[]string{"192.0.2.1", "::ffff:192.0.2.1", "192.0.255.255", "2001:db8::1", "2001:db8:ffff::"},
			[]string{"192.1.0.0", "191.255.255.255", "2001:db9::1", "2001:db7::1", "0.0.0.0", "::"},
		},
		{
			"short", prefixes("10.0.0.0/8", "fc00::/20"),
			[]string{"10.0.0.0", "10.255.255.255", "fc00::", "fc00:fff:ffff::"},
			[]string{"9.255.255.255", "11.0.0.0"},
		},
		{"between", prefixes("172.16.0.0/12", "2001:db8::/31"), []string{"172.16.0.0", "172.31.255.255", "2001:db9::"}, []string{"172.32.0.0", "2001:dba::"}},
		{"all of IPv4", prefixes("0.0.0.0/0"), []string{"0.0.0.0", "255.255.255.255", "127.0.0.1"}, []string{"::", "2001:db8::1"}},
		{"all", prefixes("::/0"), []string{"0.0.0.0", "255.255.255.255", "::", "ffff::"}, nil},
		{"around IPv4", prefixes("::/64"), []string{"192.0.2.1", "::1"}, nil},
		{"very short", prefixes("2000::/3"), []string{"2001:db8::1", "3fff::"}, []string{"192.0.2.1"}},
		{"endpoints", endpoints, []string{"203.0.113.9", "2001:db8::9"}, []string{"203.1.0.0", "2001:db9::"}},
		{"nothing again", policy.Redirects{}, nil, []string{"203.0.113.9", "2001:db8::9", "192.0.2.1"}},
	} {
		if err := k.Apply(step.redirects); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for _, a := range step.in {
			if !known(a) {
				t.Errorf("%s: %s is in no area", step.name, a)
			}
		}
		for _, a := range step.out {
			if known(a) {
				t.Errorf("%s: %s is in an area", step.name, a)
			}
		}
	}

	// Any prefix, any address in it.
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrFrom16(b)
	}
	for range 300 {
		addr := address()
		p := netip.PrefixFrom(addr, random.IntN(addr.BitLen()+1)).Masked()
		if err := k.Apply(prefixes(p.String())); err != nil {
			t.Fatal(err)
		}
		if !known(addr.String()) {
			t.Fatalf("%s of %s is in no area", addr, p)
		}
		if other := address(); canonical(p).Contains(netip.AddrFrom16(other.As16())) && !known(other.String()) {
			t.Fatalf("%s of %s is in no area", other, p)
		}
	}
}
