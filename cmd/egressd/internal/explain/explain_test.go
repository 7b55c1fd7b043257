// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

const file = `
exits:
  - {name: E-017, proxy: "gw.proxy.example:8000", session: 'user-\w+-session-(?P<session>\w+)'}
  - {name: ports, proxy: "gw.proxy.example:9000-9009"}
  - {name: wg0, interface: wg0}
budgets:
  - {name: posts, match: {hosts: [store.example.com], methods: [POST]}, per: [destination], rate: 1/min}
  - {name: api, match: {hosts: ["*.example.com"], path: /api/}, per: [path, exit], rate: 2/s}
  - {name: old, match: {hosts: [store.example.com]}, rate: 9/s, mode: "off"}
  - {name: store, match: {hosts: [store.example.com]}, rate: 1/s}
  - {name: late, match: {hosts: ["*.example.com"]}, rate: 5/s}
  - {name: net, match: {hosts: [192.0.2.0/24], ports: [8080]}, per: [exit], rate: 3/s}
  - {name: conns, match: {hosts: [store.example.com]}, per: [], unit: connections, rate: 9/s}
  - {name: seen, match: {hosts: [seen.example.net], path: /x}, rate: 1/s, tls: {mode: observe}}
`

func mustParse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := config.Parse("test.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lookup knows one name, in the documentation's range.
func lookup(_ context.Context, host string) ([]netip.Addr, error) {
	if host == "net.example" {
		return []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.1")}, nil
	}
	return nil, errors.New("no such host")
}

func TestMatches(t *testing.T) {
	p := mustParse(t, file)
	for _, tt := range []struct {
		name  string
		q     admin.Question
		lanes string   // that it falls into, in the file's order
		why   []string // "budget: part of the reason" of some that do not match
	}{
		{
			"HTTP is seen into", admin.Question{URL: "http://STORE.example.com/api/a?b"},
			"api/-/direct;path=/api/a store/store.example.com/direct conns/-/-",
			[]string{
				"posts: other methods than GET: POST", "old: it is off",
				"late: budget store stands before it", "net: do not name store.example.com: 192.0.2.0/24",
			},
		},
		{
			"another path and method", admin.Question{URL: "http://store.example.com/", Method: "POST"},
			"posts/store.example.com/- store/store.example.com/direct conns/-/-",
			[]string{"api: does not begin with /api/"},
		},
		{
			"blind TLS has neither", admin.Question{URL: "https://store.example.com/api/a", Method: "POST"},
			"store/store.example.com/direct conns/-/-",
			[]string{"posts: nobody reads what is inside", "api: names path /api/, and nobody reads"},
		},
		{
			"TLS that is read", admin.Question{URL: "https://seen.example.net/x"},
			"seen/seen.example.net/direct", nil,
		},
		{
			"a session of a proxy", admin.Question{URL: "http://store.example.com/", Exit: "E-017/abc"},
			"store/store.example.com/E-017/abc conns/-/- exits/-/E-017/abc", nil,
		},
		{
			"an exit by device", admin.Question{URL: "http://store.example.com/", Exit: "wg0"},
			"store/store.example.com/wg0 conns/-/-", nil,
		},
		{
			"an address", admin.Question{URL: "http://192.0.2.9:8080/"},
			"net/-/direct", []string{"late: do not name 192.0.2.9"},
		},
		{
			"the address of a name", admin.Question{URL: "http://net.example:8080/"},
			"net/-/direct", nil,
		},
		{
			"another port", admin.Question{URL: "http://store.example.com:81/"},
			"", []string{"store: other ports than 81: 80, 443"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Explain(t.Context(), World{Policy: p, Lookup: lookup}, tt.q)
			if err != nil {
				t.Fatal(err)
			}
			var lanes []string
			why := map[string]string{}
			for _, b := range e.Budgets {
				if b.Matches != (b.Lane != "") || b.Why == "" {
					t.Errorf("got %+v, want a reason, and a lane if it matches", b)
				}
				if b.Matches {
					lanes = append(lanes, b.Lane)
				} else {
					why[b.Budget] = b.Why
				}
			}
			if got := strings.Join(lanes, " "); got != tt.lanes {
				t.Errorf("got lanes %q, want %q", got, tt.lanes)
			}
			for _, want := range tt.why {
				budget, part, _ := strings.Cut(want, ": ")
				if !strings.Contains(why[budget], part) {
					t.Errorf("%s: got reason %q, want it to say %q", budget, why[budget], part)
				}
			}
			if e.Next != nil {
				t.Errorf("got forecast %+v without a daemon", e.Next)
			}
		})
	}
}

func TestLed(t *testing.T) {
	p := mustParse(t, file)
	local := mustParse(t, `budgets: [{name: a, match: {hosts: [127.0.0.1], ports: [8080]}, rate: 1/s}]`)
	for _, tt := range []struct {
		p    *policy.Policy
		url  string
		exit string
		want bool
	}{
		{p, "https://any.example.org/", "", true}, // its name is only known after the first look
		{p, "https://any.example.org:8443/", "", false},
		{p, "https://any.example.org:8443/", "E-017", true},
		{p, "http://192.0.2.1:8080/", "", true},
		{p, "http://198.51.100.1:8080/", "", false},
		{p, "http://localhost/", "", false},
		{local, "http://localhost:8080/", "", true},
		{local, "http://127.0.0.2:8080/", "", false},
		{mustParse(t, "budgets: []"), "http://a.example/", "", false},
	} {
		e, err := Explain(t.Context(), World{Policy: tt.p, Lookup: lookup}, admin.Question{URL: tt.url, Exit: tt.exit})
		if err != nil {
			t.Fatal(err)
		}
		if e.Led != tt.want || e.LedWhy == "" {
			t.Errorf("%s by %q: got led %v (%s), want %v", tt.url, tt.exit, e.Led, e.LedWhy, tt.want)
		}
	}
}

func TestBadQuestions(t *testing.T) {
	p := mustParse(t, file)
	for _, tt := range []struct {
		q    admin.Question
		want string
	}{
		{admin.Question{URL: "ftp://a.example/"}, "scheme ftp is neither http nor https"},
		{admin.Question{URL: "https:///x"}, "names no host"},
		{admin.Question{URL: "https://a..example/"}, "names no host"},
		{admin.Question{URL: "https://user:secret@%zz/"}, "cannot be read"},
		{admin.Question{URL: "http://a.example:0/"}, "port 0 is none"},
		{admin.Question{URL: "http://a.example/", Method: "get it"}, "write it in capitals"},
		{admin.Question{URL: "http://a.example/", Exit: "E-018"}, "no exit E-018 in the policy; there are: direct, E-017, ports, wg0"},
		{admin.Question{URL: "http://a.example/", Exit: "wg0/x"}, "no proxy"},
		{admin.Question{URL: "http://a.example/", Exit: "ports"}, "write it as in ports/9000"},
		{admin.Question{URL: "http://a.example/", Exit: "ports/9010"}, "write it as in ports/9000"},
		{admin.Question{URL: "http://a.example/", Exit: "ports/9001/x"}, "does not tell sessions apart"},
	} {
		_, err := Explain(t.Context(), World{Policy: p, Lookup: lookup}, tt.q)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: got error %v, want one that says %q", tt.q, err, tt.want)
		}
	}
}

func TestUnknownAddresses(t *testing.T) {
	p := mustParse(t, file)
	for host, want := range map[string]string{
		"gone.example": "has no address now (no such host)",
		"net.example":  "has 2 addresses, of which 192.0.2.7 was tried",
	} {
		e, err := Explain(t.Context(), World{Policy: p, Lookup: lookup}, admin.Question{URL: "http://" + host})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(e.Notes, "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: got notes %q, want %q", host, got, want)
		}
	}
}

// TestUserIsNotShown holds that what stands before an @ is nowhere.
func TestUserIsNotShown(t *testing.T) {
	e, err := Explain(t.Context(), World{Policy: mustParse(t, file)}, admin.Question{URL: "https://me:secret@store.example.com/#secret"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Write(&out, &e, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "secret") || !strings.Contains(out.String(), "GET https://store.example.com/\n") {
		t.Errorf("got\n%s", out.String())
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"https://a.example/x?y", "a.example", "http://[::1]:80/", "http://u:p@h/#f", "://", "http://a:99999/"} {
		f.Add(seed, "GET")
	}
	f.Fuzz(func(t *testing.T, text, method string) {
		got, err := parse(admin.Question{URL: text, Method: method})
		if err != nil {
			return
		}
		if got.host == "" || got.port == 0 || !strings.HasPrefix(got.path, "/") && !strings.HasPrefix(got.path, "*") {
			t.Errorf("%q: got %+v", text, got)
		}
		if again, err := parse(admin.Question{URL: got.text, Method: got.method}); err != nil || again.host != got.host || again.port != got.port || again.path != got.path {
			t.Errorf("%q: got %+v, and of its own text %+v, %v", text, got, again, err)
		}
	})
}
