// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"strings"
	"testing"

	"github.com/egressd/egressd/userspace/http1"
)

func TestAppendLogin(t *testing.T) {
	const mine, start = "Proxy-Authorization: Basic bWU6cHc=\r\n", "GET http://origin.test/ HTTP/1.1\r\n"
	for _, tt := range []struct{ name, head, want string }{
		{"none", start + "Host: origin.test\r\nA: b\r\n\r\n", start + "Host: origin.test\r\n" + mine + "A: b\r\n\r\n"},
		{"none, and Host last", start + "A: b\r\nHost: origin.test\r\n\r\n", start + "A: b\r\n" + mine + "Host: origin.test\r\n\r\n"},
		{"one field", start + "Host: origin.test\r\n\r\n", start + "Host: origin.test\r\n" + mine + "\r\n"},
		{"no field", "GET http://origin.test/ HTTP/1.0\r\n\r\n", "GET http://origin.test/ HTTP/1.0\r\n" + mine + "\r\n"},
		{"CONNECT without a field", "CONNECT origin.test:443 HTTP/1.1\r\n\r\n", "CONNECT origin.test:443 HTTP/1.1\r\n" + mine + "\r\n"},
		{"first", start + "Proxy-Authorization: x\r\nHost: origin.test\r\n\r\n", start + mine + "Host: origin.test\r\n\r\n"},
		{"in the middle, in any case", start + "Host: origin.test\r\npROXY-aUTHORIZATION:x\r\nA:  b \r\n\r\n", start + "Host: origin.test\r\n" + mine + "A:  b \r\n\r\n"},
		{"last", start + "Host: origin.test\r\nA: b\r\nProxy-Authorization: x\r\n\r\n", start + "Host: origin.test\r\nA: b\r\n" + mine + "\r\n"},
		{"several", start + "Host: origin.test\r\nProxy-Authorization: x\r\nA: b\r\nProxy-Authorization: y\r\nC: d\r\nproxy-authorization:\r\n\r\n",
			start + "Host: origin.test\r\n" + mine + "A: b\r\nC: d\r\n\r\n"},
		{"names that begin like it", start + "Host: origin.test\r\nProxy-Authorization-Info: x\r\nX-Proxy-Authorization: y\r\nProxy-Authenticate: z\r\n\r\n",
			start + "Host: origin.test\r\n" + mine + "Proxy-Authorization-Info: x\r\nX-Proxy-Authorization: y\r\nProxy-Authenticate: z\r\n\r\n"},
		{"empty lines before it", "\r\n\r\n" + start + "Host: origin.test\r\n\r\n", "\r\n\r\n" + start + "Host: origin.test\r\n" + mine + "\r\n"},
		{"other fields of the hop", start + "Host: origin.test\r\nProxy-Connection: keep-alive\r\nConnection: x, Proxy-Authorization\r\n\r\n",
			start + "Host: origin.test\r\n" + mine + "Proxy-Connection: keep-alive\r\nConnection: x, Proxy-Authorization\r\n\r\n"},
	} {
		if n, err := http1.ParseRequest(new(http1.RequestHead), []byte(tt.head), 0); n != len(tt.head) || err != nil {
			t.Fatalf("%s: not a request: %d, %v", tt.name, n, err)
		}
		if got := appendLogin([]byte("before "), []byte(tt.head), []byte(mine)); string(got) != "before "+tt.want {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, "before "+tt.want)
		}
		if got, want := appendLogin(nil, []byte(tt.head), nil), strings.Replace(tt.want, mine, "", 1); string(got) != want {
			t.Errorf("%s, without a login:\n got %q\nwant %q", tt.name, got, want)
		}
	}
}

// FuzzAppendLogin holds that whatever the parser takes for a request is the same
// one afterwards, with one login in it, and what else the client sent unchanged.
func FuzzAppendLogin(f *testing.F) {
	f.Add("GET http://a/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: x\r\nB: c\r\n\r\n")
	f.Add("\r\nCONNECT a:1 HTTP/1.0\r\n\r\n")
	f.Add("POST http://a/ HTTP/1.1\r\nproxy-authorization: x\r\nHost: a\r\nProxy-Authorization: y\r\nContent-Length: 3\r\n\r\nabc")
	const mine = "Proxy-Authorization: Basic mine\r\n"
	f.Fuzz(func(t *testing.T, text string) {
		var before, after http1.RequestHead
		n, err := http1.ParseRequest(&before, []byte(text), 0)
		if n == 0 || err != nil {
			return
		}
		head := []byte(text[:n])
		got := appendLogin(nil, head, []byte(mine))
		if string(head) != text[:n] {
			t.Fatal("the head itself was changed")
		}
		m, err := http1.ParseRequest(&after, got, 0)
		if err != nil || m != len(got) {
			if len(got) >= http1.MaxHead || strings.Count(text[:n], "\r\n") > http1.MaxFields {
				return // there was no room for one more
			}
			t.Fatalf("%q became %q: %d, %v", head, got, m, err)
		}
		if string(before.Method) != string(after.Method) || string(before.Target) != string(after.Target) || string(before.Authority) != string(after.Authority) ||
			before.Minor != after.Minor || before.Body.Kind() != after.Body.Kind() || before.Body.Remaining() != after.Body.Remaining() ||
			before.Close != after.Close || before.Expect100 != after.Expect100 || before.Upgrade != after.Upgrade {
			t.Fatalf("%q became another request: %q", head, got)
		}
		var logins []string
		others := func(head []byte) (all []string) {
			http1.Fields(head, func(name, value []byte) bool {
				if http1.EqualFold(name, "proxy-authorization") {
					logins = append(logins, string(value))
				} else {
					all = append(all, string(name)+":"+string(value))
				}
				return true
			})
			return all
		}
		want := others(head)
		logins = nil
		if have := others(got); strings.Join(have, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%q has other fields: %q", head, got)
		}
		if len(logins) != 1 || logins[0] != "Basic mine" {
			t.Fatalf("%q has the logins %q", got, logins)
		}
		if again := appendLogin(nil, got, []byte(mine)); !bytes.Equal(again, got) {
			t.Fatalf("%q is not the same the second time: %q", got, again)
		}
		if plain := appendLogin(nil, got, nil); !bytes.Equal(plain, appendLogin(nil, head, nil)) {
			t.Fatalf("%q without a login is %q", head, plain)
		}
	})
}
