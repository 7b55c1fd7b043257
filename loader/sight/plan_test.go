// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"slices"
	"testing"
	"unsafe"
)

func TestPlan(t *testing.T) {
	plans, err := planOf(Target{Library: OpenSSL, Probes: []Probe{
		{Symbol: "SSL_read", Entry: 1}, {Symbol: "SSL_write_ex2", Entry: 2}, {Symbol: "SSL_free", Entry: 3},
		{Symbol: "BIO_write", Entry: 4}, {Symbol: "SSL_peek", Entry: 5}, {Symbol: "gnutls_record_recv", Entry: 6},
	}})
	if err != nil {
		t.Fatal(err)
	}
	const ssl = uint64(OpenSSL) << funcLibrary
	calls := []place{{1, ssl}, {2, ssl | funcWrite | funcEx2}}
	for h, want := range map[hook][]place{
		hookEnter: calls, hookLeave: calls, hookFree: {{3, ssl}}, hookBIOWrite: {{4, ssl}},
		hookSetFD: nil, hookGoEnter: nil, hookGoLeave: nil,
	} {
		if !slices.Equal(plans[h], want) {
			t.Errorf("%s: got %v, want %v", h, plans[h], want)
		}
	}
}

// TestPlanOfGo: no return probe is ever put on a function of Go.
func TestPlanOfGo(t *testing.T) {
	const golang = uint64(GoTLS) << funcLibrary
	for symbol, bits := range map[string]uint64{
		"crypto/tls.(*Conn).Read":                              golang,
		"crypto/tls.(*Conn).Write":                             golang | funcWrite,
		"github.com/refraction-networking/utls.(*Conn).Read":   golang,
		"github.com/refraction-networking/utls.(*UConn).Write": golang | funcWrite | funcCovered,
		"vendor.example/bogdanfinn/utls.(*UConn).Read":         golang | funcCovered,
	} {
		plans, err := planOf(Target{Library: GoTLS, Probes: []Probe{{Symbol: symbol, Entry: 1, Returns: []uint64{7, 9}}}})
		if err != nil {
			t.Fatal(err)
		}
		for h := range numHooks {
			var want []place
			switch h {
			case hookGoEnter:
				want = []place{{1, bits}}
			case hookGoLeave:
				want = []place{{7, bits}, {9, bits}}
			}
			if !slices.Equal(plans[h], want) {
				t.Errorf("%s: %s: got %v, want %v", symbol, h, plans[h], want)
			}
		}
	}
	for name, target := range map[string]Target{
		"no returns":       {Library: GoTLS, Probes: []Probe{{Symbol: "crypto/tls.(*Conn).Read", Entry: 1}}},
		"other functions":  {Library: GoTLS, Probes: []Probe{{Symbol: "crypto/tls.(*Conn).Close", Entry: 1, Returns: []uint64{2}}}},
		"of other types":   {Library: GoTLS, Probes: []Probe{{Symbol: "net.(*TCPConn).Read", Entry: 1, Returns: []uint64{2}}}},
		"no library":       {Probes: []Probe{{Symbol: "SSL_read", Entry: 1}}},
		"of another":       {Library: GnuTLS, Probes: []Probe{{Symbol: "SSL_read", Entry: 1}}},
		"nothing to probe": {Library: OpenSSL},
	} {
		if _, err := planOf(target); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestLevelOf(t *testing.T) {
	for name, want := range map[string]int{"": 0, "/": 0, "a": 1, "/a": 1, "/a/": 1, "a/b": 2, "/a/../b/c/": 2, "../x": 1} {
		if got := levelOf(name); got != want {
			t.Errorf("%q: got %d, want %d", name, got, want)
		}
	}
}

func TestDecode(t *testing.T) {
	const size = int(unsafe.Sizeof(sightEvent{}))
	e := sightEvent{Conn: 7, Cookie: 9, Len: 3, Total: 5, Kind: uint8(Data), CookieSource: uint8(SourceFD), HasRandom: 1}
	raw := append(slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&e)), size)), "abcd"...)
	ev, ok := decode(raw)
	if !ok || ev.Conn != 7 || ev.Cookie != 9 || string(ev.Data) != "abc" || ev.Total != 5 {
		t.Errorf("got %+v, %t", ev, ok)
	}
	if ev.Source != SourceRandom || ev.CookieSource != SourceFD {
		t.Errorf("proofs: got %s and %s, want random and fd", ev.Source, ev.CookieSource)
	}
	for n := range size + 3 {
		if _, ok := decode(raw[:n]); ok {
			t.Errorf("%d bytes are taken for an event", n)
		}
	}
}
