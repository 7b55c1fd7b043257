// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"slices"
	"strings"
	"testing"
)

const (
	ok5 = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	ok4 = "\x00\x5a\x00\x00\x00\x00\x00\x00"

	toName = "\x05\x01\x00\x03\x11Store.Example.COM\x01\xbb"
	name5  = "request 5 connect store.example.com 443"
	login  = "\x01\x0facme-session-a1\x06sesame"
	user   = `auth "acme-session-a1"`
)

// domain5 is a SOCKS5 request for name, port 80.
func domain5(name string) string {
	return "\x05\x01\x00\x03" + string(rune(len(name))) + name + "\x00\x50"
}

// scripts are handshakes and what is told of them.
var scripts = []struct {
	name   string
	script []step
	want   string
}{
	// As recorded of curl 7.88.1, microsocks 1.0.3 and dante 1.4.2.
	{"curl socks5, microsocks", []step{
		{"c", "\x05\x02\x00\x01"}, {"s", "\x05\x00"},
		{"c", "\x05\x01\x00\x01\x7f\x00\x00\x01\xa1\xaf"}, {"s", ok5},
		{"c", "GET / HTTP/1.1\r\n"}, {"s", "HTTP/1.1 200 OK\r\n"},
	}, "greeting, method chosen, request 5 connect 127.0.0.1 41391, done granted; 16 payload of client; 17 payload of proxy"},
	{"curl socks5h with password, microsocks", []step{
		{"c", "\x05\x03\x00\x01\x02"}, {"s", "\x05\x02"}, {"c", login}, {"s", "\x01\x00"},
		{"c", "\x05\x01\x00\x03\tlocalhost\xa1\xaf"}, {"s", ok5},
	}, "greeting, method chosen, " + user + ", auth result, request 5 connect localhost 41391, done granted"},
	{"curl, wrong password, microsocks", []step{
		{"c", "\x05\x03\x00\x01\x02"}, {"s", "\x05\x02"}, {"c", "\x01\x0facme-session-a1\x04open"}, {"s", "\x01\x02"},
	}, "greeting, method chosen, " + user + ", failed authentication failed"},
	{"curl without password, microsocks", []step{
		{"c", "\x05\x02\x00\x01"}, {"s", "\x05\xff"},
	}, "greeting, failed no acceptable method"},
	{"curl socks5, microsocks, closed port", []step{
		{"c", "\x05\x02\x00\x01"}, {"s", "\x05\x00"},
		{"c", "\x05\x01\x00\x01\x7f\x00\x00\x01\x8f\xd5"}, {"s", "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"},
	}, "greeting, method chosen, request 5 connect 127.0.0.1 36821, failed connection refused"},
	{"curl socks5, dante, forbidden port", []step{
		{"c", "\x05\x02\x00\x01"}, {"s", "\x05\x00"},
		{"c", "\x05\x01\x00\x01\x7f\x00\x00\x01\x00\t"}, {"s", "\x05\x02\x00\x01\x7f\x00\x00\x01\x00\t"},
	}, "greeting, method chosen, request 5 connect 127.0.0.1 9, failed not allowed"},
	{"curl socks4, dante", []step{
		{"c", "\x04\x01\xa1\xaf\x7f\x00\x00\x01acme\x00"}, {"s", "\x00Z\x99\xd7\x7f\x00\x00\x01"}, {"s", "hello"},
	}, "request 4 connect 127.0.0.1 41391, done granted; 5 payload of proxy"},
	{"curl socks4a, dante, which knows no 4a", []step{
		{"c", "\x04\x01\xa1\xaf\x00\x00\x00\x01acme-session-a1\x00localhost\x00"}, {"s", "\x00[\xdc\xad\x7f\x00\x00\x01"},
	}, "request 4 connect localhost 41391, failed general failure"},

	// Clients that do not wait.
	{"all at once", []step{
		{"c", "\x05\x01\x02" + login + toName + "hello"}, {"s", "\x05\x02\x01\x00" + ok5 + "world!"},
	}, "greeting, " + user + ", " + name5 + ", method chosen, auth result, done granted; 5 payload of client; 6 payload of proxy"},
	{"all at once without password", []step{
		{"c", "\x05\x01\x00" + toName + "hello"}, {"s", "\x05\x00" + ok5},
	}, "greeting, " + name5 + ", method chosen, done granted; 5 payload of client"},
	{"two methods offered, request at once", []step{
		{"c", "\x05\x02\x00\x02" + toName}, {"s", "\x05\x00" + ok5},
	}, "greeting, " + name5 + ", method chosen, done granted"},
	{"two methods offered, password at once", []step{
		{"c", "\x05\x02\x02\x00" + login + toName}, {"s", "\x05\x02\x01\x00" + ok5},
	}, "greeting, " + user + ", " + name5 + ", method chosen, auth result, done granted"},
	{"gssapi offered: what follows is ambiguous", []step{
		{"c", "\x05\x03\x00\x01\x02" + login + toName},
	}, "greeting; client waits with 48"},
	{"gssapi offered, method chosen at last", []step{
		{"c", "\x05\x03\x00\x01\x02" + login + toName}, {"s", "\x05\x02\x01\x00" + ok5},
	}, "greeting, method chosen, " + user + ", " + name5 + ", auth result, done granted"},
	{"request at once, password wanted", []step{
		{"c", "\x05\x02\x00\x02" + toName}, {"s", "\x05\x02"},
	}, "greeting, " + name5 + "; socks: client went ahead with another method"},
	{"password at once, none wanted", []step{
		{"c", "\x05\x02\x00\x02" + login}, {"s", "\x05\x00"},
	}, "greeting, " + user + "; socks: client went ahead with another method"},
	{"request at once where only a password is offered", []step{
		{"c", "\x05\x01\x02" + toName}, {"s", "\x05\x02"},
	}, "greeting, method chosen; socks: unknown version of authentication"},
	{"data before a socks4 reply", []step{
		{"c", "\x04\x01\x00\x50\xc0\x00\x02\x01\x00hello"}, {"s", ok4},
	}, "request 4 connect 192.0.2.1 80, done granted; 5 payload of client"},
	{"data, then refused", []step{
		{"c", "\x04\x01\x00\x50\xc0\x00\x02\x01\x00hello"}, {"s", "\x00\x5b\x00\x00\x00\x00\x00\x00bye"}, {"c", "more"},
	}, "request 4 connect 192.0.2.1 80, failed general failure; 5 payload of client; 4 opaque of client; 3 opaque of proxy"},

	// Methods.
	{"gssapi", []step{
		{"c", "\x05\x01\x01"}, {"s", "\x05\x01"}, {"c", "\x01\x01\x00\x01x"}, {"s", "\x01\x01\x00\x00"},
	}, "greeting; 5 opaque of client; 6 opaque of proxy"},
	{"private method", []step{
		{"c", "\x05\x02\x00\x80"}, {"s", "\x05\x80..."},
	}, "greeting; 5 opaque of proxy"},
	{"method not offered", []step{{"c", "\x05\x02\x00\x02"}, {"s", "\x05\x01"}}, "greeting; socks: method not offered"},
	{"none wanted though not offered", []step{
		{"c", "\x05\x01\x02"}, {"s", "\x05\x00"}, {"c", toName}, {"s", ok5},
	}, "greeting, method chosen, " + name5 + ", done granted"},
	{"255 methods", []step{{"c", "\x05\xff" + strings.Repeat("\x00", 255) + toName}}, "greeting, " + name5},
	{"no methods", []step{{"c", "\x05\x00"}}, "socks: no methods offered"},
	{"empty name and password", []step{
		{"c", "\x05\x01\x02"}, {"s", "\x05\x02"}, {"c", "\x01\x00\x00"}, {"s", "\x05\x00"}, {"c", toName},
	}, `greeting, method chosen, auth "", auth result, ` + name5},
	{"longest name and password", []step{
		{"c", "\x05\x01\x02\x01\xff" + strings.Repeat("u", 255) + "\xff" + strings.Repeat("p", 255) + toName},
	}, `greeting, auth "` + strings.Repeat("u", 255) + `", ` + name5},

	// Destinations.
	{"ipv6", []step{{"c", "\x05\x01\x00\x05\x01\x00\x04\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x01\x00\x50"}},
		"greeting, request 5 connect 2001:db8::1 80"},
	{"mapped", []step{{"c", "\x05\x01\x00\x05\x01\x00\x04" + strings.Repeat("\x00", 10) + "\xff\xff\xc0\x00\x02\x01\x00\x50"}},
		"greeting, request 5 connect 192.0.2.1 80"},
	{"address as a name", []step{{"c", "\x05\x01\x00" + domain5("192.0.2.1")}}, "greeting, request 5 connect 192.0.2.1 80"},
	{"ipv6 as a name", []step{{"c", "\x05\x01\x00" + domain5("2001:DB8:0::1")}}, "greeting, request 5 connect 2001:db8::1 80"},
	{"ipv6 in brackets", []step{{"c", "\x05\x01\x00" + domain5("[2001:db8::1]")}}, "greeting, request 5 connect 2001:db8::1 80"},
	{"final dot", []step{{"c", "\x05\x01\x00" + domain5("Store.example.")}}, "greeting, request 5 connect store.example 80"},
	{"port 0", []step{{"c", "\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x00"}}, "greeting, request 5 connect 192.0.2.1 0"},
	{"empty name", []step{{"c", "\x05\x01\x00" + domain5("")}}, "greeting; socks: invalid domain name"},
	{"name with nul", []step{{"c", "\x05\x01\x00" + domain5("a.example\x00b")}}, "greeting; socks: invalid domain name"},
	{"name with port", []step{{"c", "\x05\x01\x00" + domain5("a.example:81")}}, "greeting; socks: invalid domain name"},
	{"ipv6 with port", []step{{"c", "\x05\x01\x00" + domain5("[::1]:81")}}, "greeting; socks: invalid domain name"},
	{"ipv6 with zone", []step{{"c", "\x05\x01\x00" + domain5("fe80::1%lo")}}, "greeting; socks: invalid domain name"},
	{"lone bracket", []step{{"c", "\x05\x01\x00" + domain5("[:")}}, "greeting; socks: invalid domain name"},
	{"name in utf-8", []step{{"c", "\x05\x01\x00" + domain5("b\xc3\xbccher.example")}}, "greeting; socks: invalid domain name"},
	{"address type 2", []step{{"c", "\x05\x01\x00\x05\x01\x00\x02\x00"}}, "greeting; socks: unknown address type"},
	{"socks4a", []step{{"c", "\x04\x01\x01\xbb\x00\x00\x00\x09acme\x00Store.Example.com\x00"}, {"s", ok4}},
		"request 4 connect store.example.com 443, done granted"},
	{"socks4 to 0.0.0.0", []step{{"c", "\x04\x01\x01\xbb\x00\x00\x00\x00acme\x00x"}}, "request 4 connect 0.0.0.0 443; 1 payload of client"},
	{"longest socks4a", []step{{"c", "\x04\x01\x01\xbb\x00\x00\x00\x01" + strings.Repeat("u", 255) + "\x00" + strings.Repeat("a.", 126) + "a\x00"}},
		"request 4 connect " + strings.Repeat("a.", 126) + "a 443"},
	{"user id too long", []step{{"c", "\x04\x01\x01\xbb\xc0\x00\x02\x01" + strings.Repeat("u", 256)}}, "socks: user id too long"},
	{"domain too long", []step{{"c", "\x04\x01\x01\xbb\x00\x00\x00\x01\x00" + strings.Repeat("a", 256)}}, "socks: domain name too long"},
	{"empty domain", []step{{"c", "\x04\x01\x01\xbb\x00\x00\x00\x01\x00\x00"}}, "socks: invalid domain name"},

	// Commands.
	{"bind", []step{
		{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x05\x02\x00\x01\xc0\x00\x02\x01\x00\x15"}, {"s", ok5 + ok5 + "220 "},
	}, "greeting, method chosen, request 5 bind 192.0.2.1 21, reply granted, done granted; 4 payload of proxy"},
	{"bind, nobody came", []step{
		{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x05\x02\x00\x01\xc0\x00\x02\x01\x00\x15"}, {"s", ok5 + "\x05\x06\x00\x01\x00\x00\x00\x00\x00\x00"},
	}, "greeting, method chosen, request 5 bind 192.0.2.1 21, reply granted, failed ttl expired"},
	{"socks4 bind", []step{
		{"c", "\x04\x02\x00\x15\xc0\x00\x02\x01\x00"}, {"s", ok4}, {"s", ok4},
	}, "request 4 bind 192.0.2.1 21, reply granted, done granted"},
	{"udp associate", []step{
		{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00?"}, {"s", ok5},
	}, "greeting, method chosen, request 5 udp associate 0.0.0.0 0, done granted; 1 opaque of client"},
	{"udp associate, bytes before the reply", []step{
		{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00?"},
	}, "greeting, method chosen, request 5 udp associate 0.0.0.0 0; client waits with 1"},
	{"resolve, an extension of Tor", []step{
		{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x05\xf0\x00\x03\x01a\x00\x00"}, {"s", ok5 + "?"},
	}, "greeting, method chosen, request 5 unknown a 0, done granted; 1 opaque of proxy"},

	// Replies.
	{"reply with a name", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x00\x00\x03\x03foo\x00\x50hi"}},
		"greeting, " + name5 + ", method chosen, done granted; 2 payload of proxy"},
	{"reply with ipv6", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x00\x00\x04" + strings.Repeat("\x00", 18) + "hi"}},
		"greeting, " + name5 + ", method chosen, done granted; 2 payload of proxy"},
	{"refusal without an address", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x04\x00\x00"}},
		"greeting, " + name5 + ", method chosen, failed host unreachable"},
	{"grant without an address", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x00\x00\x00"}},
		"greeting, " + name5 + ", method chosen; socks: unknown address type"},
	{"unassigned code", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x63\x00\x01\x00\x00\x00\x00\x00\x00"}},
		"greeting, " + name5 + ", method chosen, failed unassigned"},
	{"half a reply", []step{{"c", "\x05\x01\x00" + toName}, {"s", "\x05\x00\x05\x00\x00\x01\x00"}},
		"greeting, " + name5 + ", method chosen; proxy waits with 5"},
	{"socks4 reply of version 4", []step{{"c", "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}, {"s", "\x04\x5a\x00\x00\x00\x00\x00\x00"}},
		"request 4 connect 192.0.2.1 80, done granted"},
	{"identd", []step{{"c", "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}, {"s", "\x00\x5c\x00\x00\x00\x00\x00\x00"}},
		"request 4 connect 192.0.2.1 80, failed no identd"},
	{"http answer to socks4", []step{{"c", "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}, {"s", "HTTP/1.1 400 Bad Request\r\n"}},
		"request 4 connect 192.0.2.1 80; socks: unknown version of a reply"},
	{"http answer to socks5", []step{{"c", "\x05\x01\x00"}, {"s", "H"}}, "greeting; socks: unknown version of a reply"},
	{"bad version of an auth result", []step{{"c", "\x05\x01\x02" + login}, {"s", "\x05\x02\x00\x00"}},
		"greeting, " + user + ", method chosen; socks: unknown version of a reply"},

	// Out of turn.
	{"proxy first", []step{{"s", "\x05\x00"}}, "socks: answer before the question"},
	{"auth result first", []step{{"c", "\x05\x01\x02"}, {"s", "\x05\x02\x01\x00"}}, "greeting, method chosen; socks: answer before the question"},
	{"reply first", []step{{"c", "\x05\x01\x00"}, {"s", "\x05\x00" + ok5}}, "greeting, method chosen; socks: answer before the question"},
	{"no socks", []step{{"c", "GET / HTTP/1.1\r\n"}}, "socks: unknown version"},
	{"version changes", []step{{"c", "\x05\x01\x00"}, {"s", "\x05\x00"}, {"c", "\x04\x01\x00\x50"}}, "greeting, method chosen; socks: unknown version"},
	{"nothing", nil, ""},
}

func TestScripts(t *testing.T) {
	for _, tt := range scripts {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1 << 20, 1, 2, 3, 7} {
				if got := play(t, tt.script, size).String(); got != tt.want {
					t.Errorf("in pieces of %d:\n got %s\nwant %s", size, got, tt.want)
				}
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	seen := map[string]bool{}
	for o := Pending; o < numOutcomes; o++ {
		if name := o.String(); name == "" || seen[name] {
			t.Errorf("outcome %d is called %q", o, name)
		} else {
			seen[name] = true
		}
	}
	for code := range 256 {
		o := outcome5(byte(code))
		if (code == 0) != (o == Granted) || o == Pending || o > Unassigned {
			t.Errorf("SOCKS5 code %d is %v", code, o)
		}
		if o := outcome4(byte(code)); (code == 90) != (o == Granted) || o == Pending {
			t.Errorf("SOCKS4 code %d is %v", code, o)
		}
	}
	if got := outcome5(8); got != UnknownAddressType {
		t.Errorf("SOCKS5 code 8 is %v", got)
	}
}

func TestReasons(t *testing.T) {
	var reached []string
	for _, tt := range scripts {
		if err, ok := play(t, tt.script, 1<<20).err.(*Error); ok {
			reached = append(reached, err.Reason)
		}
	}
	all := Reasons()
	slices.Sort(all)
	if got := slices.Compact(all); len(got) != len(reasons) {
		t.Errorf("%d different reasons of %d", len(got), len(reasons))
	}
	slices.Sort(reached)
	if got := slices.Compact(reached); !slices.Equal(got, all) {
		t.Errorf("errors of the scripts:\n got %q\nwant %q", got, all)
	}
}

// BenchmarkHandshake reads a whole handshake with a password.
func BenchmarkHandshake(b *testing.B) {
	messages := []step{
		{"c", "\x05\x01\x02"}, {"s", "\x05\x02"}, {"c", login}, {"s", "\x01\x00"}, {"c", toName}, {"s", ok5},
	}
	bytes := make([][]byte, len(messages))
	for i, m := range messages {
		bytes[i] = []byte(m.data)
	}
	b.ReportAllocs()
	for b.Loop() {
		var o Observer
		var last Event
		for i := range bytes {
			var err error
			if i%2 == 0 {
				_, last, err = o.Client(bytes[i])
			} else {
				_, last, err = o.Server(bytes[i])
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		if last != Done {
			b.Fatal(last)
		}
	}
}
