// SPDX-License-Identifier: Apache-2.0

package dnsmsg

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/egressd/egressd/policy"
)

// reply begins a response to a question.
func reply(name string, kind dnsmessage.Type, records ...dnsmessage.Resource) dnsmessage.Message {
	return dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true, RecursionDesired: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
		Answers:   records,
	}
}

func head(owner string, ttl uint32) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner), Class: dnsmessage.ClassINET, TTL: ttl}
}

func a(owner string, ttl uint32, addr string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, ttl), Body: &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()}}
}

func aaaa(owner string, ttl uint32, addr string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, ttl), Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(addr).As16()}}
}

func cname(owner string, ttl uint32, target string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, ttl), Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(target)}}
}

func https(owner string, ttl uint32, priority uint16, target string, params ...dnsmessage.SVCParam) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, ttl), Body: &dnsmessage.HTTPSResource{SVCBResource: dnsmessage.SVCBResource{
		Priority: priority, Target: dnsmessage.MustNewName(target), Params: params,
	}}}
}

func hint(addrs ...string) dnsmessage.SVCParam {
	p := dnsmessage.SVCParam{Key: dnsmessage.SVCParamIPv4Hint}
	for _, s := range addrs {
		addr := netip.MustParseAddr(s)
		if addr.Is6() {
			p.Key = dnsmessage.SVCParamIPv6Hint
		}
		p.Value = append(p.Value, addr.AsSlice()...)
	}
	return p
}

func mustPack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// told writes an answer in one line: names and addresses with the length of
// their chain and their TTL.
func told(a *Answer) string {
	if a == nil {
		return ""
	}
	var b strings.Builder
	b.WriteString(strings.Join(append([]string{a.Name}, a.Aliases...), ">"))
	for _, addr := range a.Addrs {
		fmt.Fprintf(&b, " %s/%d/%d", addr.Addr, addr.Chain, addr.TTL/time.Second)
	}
	return b.String()
}

func TestParse(t *testing.T) {
	const ipv4, ipv6, both = dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeALL
	for _, tt := range []struct {
		name string
		msg  dnsmessage.Message
		want string
	}{
		{"one address", reply("store.example.", ipv4, a("store.example.", 60, "192.0.2.1")), "store.example 192.0.2.1/0/60"},
		{
			"several, one of them twice",
			reply("store.example.", ipv4, a("store.example.", 60, "192.0.2.1"), a("store.example.", 90, "192.0.2.2"), a("store.example.", 9, "192.0.2.1")),
			"store.example 192.0.2.1/0/60 192.0.2.2/0/90",
		},
		{"IPv6", reply("store.example.", ipv6, aaaa("store.example.", 60, "2001:db8::1")), "store.example 2001:db8::1/0/60"},
		{"IPv4 in IPv6", reply("store.example.", ipv6, aaaa("store.example.", 60, "::ffff:192.0.2.1")), "store.example 192.0.2.1/0/60"},
		{"letters of either case", reply("StOrE.eXaMpLe.", ipv4, a("sToRe.ExAmPlE.", 60, "192.0.2.1")), "store.example 192.0.2.1/0/60"},
		{
			"a chain has the least of its lifetimes",
			reply("store.example.", ipv4, cname("store.example.", 300, "a.cdn.example."), cname("a.cdn.example.", 20, "b.cdn.example."), a("b.cdn.example.", 60, "192.0.2.1")),
			"store.example>a.cdn.example>b.cdn.example 192.0.2.1/2/20",
		},
		{
			"a chain in another order",
			reply("store.example.", ipv4, a("b.cdn.example.", 10, "192.0.2.1"), cname("a.cdn.example.", 20, "B.cdn.example."), cname("store.example.", 300, "A.cdn.example.")),
			"store.example>a.cdn.example>b.cdn.example 192.0.2.1/2/10",
		},
		{
			"an address beside an alias",
			reply("store.example.", ipv4, a("store.example.", 60, "192.0.2.1"), cname("store.example.", 5, "cdn.example."), a("cdn.example.", 60, "192.0.2.2")),
			"store.example>cdn.example 192.0.2.1/0/60 192.0.2.2/1/5",
		},
		{
			"an alias that is no host's name",
			reply("store.example.", ipv4, cname("store.example.", 60, "a b.example."), cname("a b.example.", 60, "cdn.example."), a("cdn.example.", 60, "192.0.2.2")),
			"store.example>cdn.example 192.0.2.2/1/60",
		},
		{"a loop", reply("store.example.", ipv4, cname("store.example.", 60, "cdn.example."), cname("cdn.example.", 60, "store.example.")), ""},
		{
			"records of other names",
			reply("store.example.", ipv4, a("bank.example.", 60, "192.0.2.9"), a("store.example.", 60, "192.0.2.1"), cname("bank.example.", 60, "store.example.")),
			"store.example 192.0.2.1/0/60",
		},
		{"only records of other names", reply("store.example.", ipv4, a("bank.example.", 60, "192.0.2.9")), ""},
		{"a record of the type that nobody asked for", reply("store.example.", ipv4, aaaa("store.example.", 60, "2001:db8::1")), ""},
		{
			"all types",
			reply("store.example.", both, aaaa("store.example.", 60, "2001:db8::1"), a("store.example.", 60, "192.0.2.1"), https("store.example.", 60, 1, ".", hint("192.0.2.2"))),
			"store.example 2001:db8::1/0/60 192.0.2.1/0/60 192.0.2.2/0/60",
		},
		{"an alias and nothing else", reply("store.example.", ipv4, cname("store.example.", 60, "cdn.example.")), ""},
		{"addresses to which nothing goes", reply("store.example.", ipv4, a("store.example.", 60, "0.0.0.0"), a("store.example.", 60, "224.0.0.1")), ""},
		{"a lifetime with the highest bit", reply("store.example.", ipv4, a("store.example.", 1<<31, "192.0.2.1")), "store.example 192.0.2.1/0/0"},
		{"one label", reply("redis.", ipv4, a("redis.", 60, "192.0.2.1")), "redis 192.0.2.1/0/60"},
		{"an underscore", reply("my_bucket.example.", ipv4, a("my_bucket.example.", 60, "192.0.2.1")), "my_bucket.example 192.0.2.1/0/60"},
		{
			"hints of HTTPS",
			reply("store.example.", dnsmessage.TypeHTTPS, https("store.example.", 60, 1, ".",
				dnsmessage.SVCParam{Key: dnsmessage.SVCParamALPN, Value: []byte("\x02h2")}, hint("192.0.2.1", "192.0.2.2"), hint("2001:db8::1"))),
			"store.example 192.0.2.1/0/60 192.0.2.2/0/60 2001:db8::1/0/60",
		},
		{
			"hints of HTTPS at another port, behind an alias",
			reply("_8443._https.store.example.", dnsmessage.TypeHTTPS,
				cname("_8443._https.store.example.", 30, "cdn.example."), https("cdn.example.", 60, 1, ".", hint("192.0.2.1"))),
			"store.example>cdn.example 192.0.2.1/1/30",
		},
		{"HTTPS that is an alias", reply("store.example.", dnsmessage.TypeHTTPS, https("store.example.", 60, 0, "cdn.example.", hint("192.0.2.1"))), ""},
	} {
		got, err := Parse(mustPack(t, tt.msg))
		if (err == nil) == (tt.want == "") || told(got) != tt.want {
			t.Errorf("%s: got %q, %v; want %q", tt.name, told(got), err, tt.want)
		}
		if tt.want == "" && !errors.Is(err, ErrNotAddresses) {
			t.Errorf("%s: got %v, want ErrNotAddresses", tt.name, err)
		}
	}
}

func TestParseTellsNothing(t *testing.T) {
	good := func() dnsmessage.Message {
		return reply("store.example.", dnsmessage.TypeA, a("store.example.", 60, "192.0.2.1"))
	}
	changed := func(f func(*dnsmessage.Message)) dnsmessage.Message {
		m := good()
		f(&m)
		return m
	}
	named := func(name string) dnsmessage.Message {
		return reply(name, dnsmessage.TypeA, a(name, 60, "192.0.2.1"))
	}
	for _, tt := range []struct {
		name string
		msg  dnsmessage.Message
		want error
	}{
		{"a question", changed(func(m *dnsmessage.Message) { m.Response = false }), ErrNoAnswer},
		{"another kind of query", changed(func(m *dnsmessage.Message) { m.OpCode = 5 }), ErrNoAnswer},
		{"a name that does not exist", changed(func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError }), ErrNoAnswer},
		{"no question", changed(func(m *dnsmessage.Message) { m.Questions = nil }), ErrNoAnswer},
		{"two questions", changed(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), ErrNoAnswer},
		{"another class", changed(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), ErrNotAddresses},
		{"another class of record", changed(func(m *dnsmessage.Message) { m.Answers[0].Header.Class = dnsmessage.ClassCHAOS }), ErrNotAddresses},
		{"another type", changed(func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeTXT }), ErrNotAddresses},
		{"no records", changed(func(m *dnsmessage.Message) { m.Answers = nil }), ErrNotAddresses},
		{"the root", named("."), ErrName},
		{"an address as a name", named("192.0.2.7."), ErrName},
		{"a space", named("a b.example."), ErrName},
		{"a byte that is no ASCII", named("b\xfccher.example."), ErrName},
		{"a dash at the end", named("store-.example."), ErrName},
	} {
		if got, err := Parse(mustPack(t, tt.msg)); !errors.Is(err, tt.want) || got != nil {
			t.Errorf("%s: got %q, %v; want %v", tt.name, told(got), err, tt.want)
		}
	}
}

func TestParseTruncated(t *testing.T) {
	m := reply("store.example.", dnsmessage.TypeA, a("store.example.", 60, "192.0.2.1"))
	m.Truncated = true
	if got, err := Parse(mustPack(t, m)); told(got) != "store.example 192.0.2.1/0/60" {
		t.Errorf("got %q, %v", told(got), err)
	}
}

// A message that is cut anywhere tells nothing: not even what came before.
func TestParseMalformed(t *testing.T) {
	msg := mustPack(t, reply("store.example.", dnsmessage.TypeA,
		cname("store.example.", 60, "cdn.example."), a("cdn.example.", 60, "192.0.2.1"), a("cdn.example.", 60, "192.0.2.2")))
	for n := range msg {
		if got, err := Parse(msg[:n]); err == nil {
			t.Errorf("the first %d of %d bytes: got %q, want an error", n, len(msg), told(got))
		}
	}
	msg[len(msg)-5]++ // the length of the last record
	if got, err := Parse(append(msg, 0)); !errors.Is(err, errLength) {
		t.Errorf("an address of five bytes: got %q, %v; want errLength", told(got), err)
	}
}

func TestParseBounds(t *testing.T) {
	addrs := func(n int) []dnsmessage.Resource {
		var records []dnsmessage.Resource
		for i := range n {
			records = append(records, a("store.example.", 60, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i + 1)}).String()))
		}
		return records
	}
	got, err := Parse(mustPack(t, reply("store.example.", dnsmessage.TypeA, addrs(MaxAddresses)...)))
	if err != nil || len(got.Addrs) != MaxAddresses {
		t.Errorf("%d addresses: got %q, %v", MaxAddresses, told(got), err)
	}
	if got, err := Parse(mustPack(t, reply("store.example.", dnsmessage.TypeA, addrs(MaxAddresses+1)...))); !errors.Is(err, errAddresses) {
		t.Errorf("%d addresses: got %q, %v; want errAddresses", MaxAddresses+1, told(got), err)
	}
	chain := func(n int) dnsmessage.Message {
		var records []dnsmessage.Resource
		at := "store.example."
		for i := range n {
			next := fmt.Sprintf("n%d.example.", i)
			records = append(records, cname(at, 60, next))
			at = next
		}
		return reply("store.example.", dnsmessage.TypeA, append(records, a(at, 60, "192.0.2.1"))...)
	}
	got, err = Parse(mustPack(t, chain(MaxAliases)))
	if err != nil || len(got.Aliases) != MaxAliases || len(got.Addrs) != 1 {
		t.Errorf("%d aliases: got %q, %v", MaxAliases, told(got), err)
	}
	if got, err := Parse(mustPack(t, chain(MaxAliases+1))); !errors.Is(err, errAliases) {
		t.Errorf("%d aliases: got %q, %v; want errAliases", MaxAliases+1, told(got), err)
	}
}

// FuzzParse holds whatever comes: nothing half-learned, nothing unbounded, and
// no address that is not in the message.
func FuzzParse(f *testing.F) {
	for _, m := range []dnsmessage.Message{
		reply("store.example.", dnsmessage.TypeA, cname("store.example.", 60, "cdn.example."), a("cdn.example.", 60, "192.0.2.1")),
		reply("Store.Example.", dnsmessage.TypeAAAA, aaaa("store.example.", 60, "2001:db8::1"), aaaa("store.example.", 1<<31, "::ffff:1.2.3.4")),
		reply("_1._https.store.example.", dnsmessage.TypeHTTPS, https("_1._https.store.example.", 60, 1, ".", hint("192.0.2.1", "192.0.2.2"), hint("2001:db8::1"))),
		reply("store.example.", dnsmessage.TypeALL, cname("store.example.", 60, "store.example."), a("store.example.", 60, "0.0.0.0")),
	} {
		f.Add(mustPack(f, m))
	}
	f.Add([]byte{0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1}) // a name that points at itself
	f.Fuzz(func(t *testing.T, msg []byte) {
		before := slices.Clone(msg)
		got, err := Parse(msg)
		if !slices.Equal(msg, before) {
			t.Fatal("the message was changed")
		}
		if (got == nil) == (err == nil) {
			t.Fatalf("got %v, %v; want one of the two", got, err)
		}
		if got == nil {
			return
		}
		if again, err := Parse(msg); err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("got %q, and then %q, %v", told(got), told(again), err)
		}
		for _, name := range append([]string{got.Name}, got.Aliases...) {
			if !policy.IsHostName(name) {
				t.Errorf("%q is no host name", name)
			}
		}
		if len(got.Addrs) == 0 || len(got.Addrs) > MaxAddresses || len(got.Aliases) > MaxAliases {
			t.Errorf("got %d addresses and %d aliases", len(got.Addrs), len(got.Aliases))
		}
		for i, addr := range got.Addrs {
			if !addr.Addr.IsValid() || addr.Addr.Is4In6() || addr.Addr.IsUnspecified() || addr.Addr.IsMulticast() {
				t.Errorf("got address %s", addr.Addr)
			}
			if addr.Chain < 0 || addr.Chain > len(got.Aliases) || addr.TTL < 0 || addr.TTL > (1<<31-1)*time.Second {
				t.Errorf("got %+v with %d aliases", addr, len(got.Aliases))
			}
			if slices.ContainsFunc(got.Addrs[:i], func(b Address) bool { return b.Addr == addr.Addr }) {
				t.Errorf("got %s twice", addr.Addr)
			}
			if !contains(msg, addr.Addr) {
				t.Errorf("got %s, which is not in the message", addr.Addr)
			}
		}
	})
}

// contains reports whether the bytes of an address stand anywhere in a message.
func contains(msg []byte, addr netip.Addr) bool {
	return strings.Contains(string(msg), string(addr.AsSlice()))
}

func BenchmarkParse(b *testing.B) {
	msg := mustPack(b, reply("www.store.example.", dnsmessage.TypeA, cname("www.store.example.", 60, "store.cdn.example."),
		a("store.cdn.example.", 60, "192.0.2.1"), a("store.cdn.example.", 60, "192.0.2.2")))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(msg); err != nil {
			b.Fatal(err)
		}
	}
}
