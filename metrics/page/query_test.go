// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
)

func mustQuery(t testing.TB, raw string) query {
	t.Helper()
	q, err := parseQuery(raw)
	if err != nil {
		t.Fatalf("parseQuery(%q): %v", raw, err)
	}
	return q
}

func TestParseQuery(t *testing.T) {
	usual := query{show: "all", sort: "activity", lanes: 100, exits: 12, events: 50}
	with := func(change func(*query)) query {
		q := usual
		change(&q)
		return q
	}
	for raw, want := range map[string]query{
		"":                                 usual,
		"q=&show=&sort=&order=&lanes=":     usual,
		"order=desc":                       usual,
		"sort=activity&order=desc":         usual,
		"q=+Shop.Example++e-1+":            with(func(q *query) { q.words = "shop.example e-1" }),
		"show=closed&lanes=500":            with(func(q *query) { q.show, q.lanes = "closed", 500 }),
		"sort=lane":                        with(func(q *query) { q.sort = "lane" }),
		"sort=lane&order=asc":              with(func(q *query) { q.sort = "lane" }),
		"sort=lane&order=desc":             with(func(q *query) { q.sort, q.turned = "lane", true }),
		"sort=sent&order=asc":              with(func(q *query) { q.sort, q.turned = "sent", true }),
		"lanes=0&exits=0&events=0":         with(func(q *query) { q.lanes, q.exits, q.events = 0, 0, 0 }),
		"exits=48&events=200&q=%E2%98%83x": with(func(q *query) { q.exits, q.events, q.words = 48, 200, "☃x" }),
	} {
		if got := mustQuery(t, raw); got != want {
			t.Errorf("parseQuery(%q) = %+v, want %+v", raw, got, want)
		}
	}
	for raw, want := range map[string]string{
		"lanes=501":                        `lanes="501": must be a number from 0 to 500`,
		"lanes=-1":                         `lanes="-1": must be a number from 0 to 500`,
		"lanes=1e3":                        `lanes="1e3": must be a number from 0 to 500`,
		"events=201":                       `events="201": must be a number from 0 to 200`,
		"sort=name":                        `sort="name": there is no such order`,
		"order=up":                         `order="up": must be asc or desc`,
		"show=open":                        `show="open": must be all, closed, waiting or slowed`,
		"limit=5":                          `parameter "limit": there is no such one`,
		"lanes=1&lanes=2":                  `lanes stands twice`,
		"q=%zz":                            `parse query: invalid URL escape "%zz"`,
		"q=" + strings.Repeat("a", 257):    `q of 257 bytes: at most 256`,
		"q=" + strings.Repeat("%41", 1000): `query of 3002 bytes: at most 2048`,
	} {
		if _, err := parseQuery(raw); err == nil || err.Error() != want {
			t.Errorf("parseQuery(%q): got error %v, want %s", raw, err, want)
		}
	}
}

// However it is asked, what is chosen is bounded, and nothing chosen twice.
func FuzzParseQuery(f *testing.F) {
	f.Add("")
	f.Add("q=shop&show=closed&sort=sent&order=asc&lanes=3&exits=1&events=2")
	f.Add("q=%00%ff&lanes=500")
	src := busy()
	var e eyes
	s := e.see(src, time.Unix(10, 0))
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseQuery(raw)
		if err != nil {
			return
		}
		out := s.state("epoch", &q)
		if len(out.Lanes) > q.lanes || len(out.Lanes) > out.LanesMatched || out.LanesMatched > len(src.lanes) ||
			len(out.Exits) > q.exits || len(out.Exits) > out.ExitsMatched || len(out.Events) > q.events {
			t.Errorf("%q chose %d of %d lanes, %d of %d exits, %d events", raw, len(out.Lanes), out.LanesMatched, len(out.Exits), out.ExitsMatched, len(out.Events))
		}
		seen := map[string]bool{}
		for _, l := range out.Lanes {
			if seen[l.Lane] {
				t.Errorf("%q chose %s twice", raw, l.Lane)
			}
			seen[l.Lane] = true
		}
		// The same in other words is the same query.
		values := url.Values{"q": {q.words}, "show": {q.show}, "sort": {q.sort}, "order": {"asc"},
			"lanes": {fmt.Sprint(q.lanes)}, "exits": {fmt.Sprint(q.exits)}, "events": {fmt.Sprint(q.events)}}
		if q.falling() {
			values.Set("order", "desc")
		}
		if again, err := parseQuery(values.Encode()); len(values.Encode()) <= maxQuery && (err != nil || again != q) {
			t.Errorf("%q is %+v, and that in full is %+v, %v", raw, q, again, err)
		}
	})
}

// FuzzHost holds that no name is taken for ours that is not.
func FuzzHost(f *testing.F) {
	for _, host := range []string{"", "localhost:1", "[::1]:9477", "metrics.example.", "evil.example", "[fe80::1%25eth0]", "127.1"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !ownHost(host, []string{"metrics.example"}) {
			return
		}
		// A name that the DNS could answer for has letters in its last label.
		name := strings.ToLower(host)
		if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.HasSuffix(name, "]") && strings.Count(name, ":") == 1 {
			name = name[:i]
		}
		name = strings.TrimSuffix(name, ".")
		if strings.ContainsAny(name, ":[]") || strings.HasSuffix(name, "localhost") || name == "metrics.example" {
			return
		}
		if last := name[strings.LastIndexByte(name, '.')+1:]; strings.Trim(last, "0123456789") != "" {
			t.Errorf("host %q is answered", host)
		}
	})
}

func TestChoose(t *testing.T) {
	lanes := []laneSeen{
		{Lane: Lane{ID: "api/a.example/E-1", Exit: "E-1", Base: 1, Rate: 1, Limited: 2}, perSecond: 0.5},
		{Lane: Lane{ID: "api/b.example/E-2", Exit: "E-2", Base: 5, Rate: 2, Waiting: 3}, perSecond: 2},
		{Lane: Lane{ID: "web/a.example/E-2", Exit: "E-2", Base: 3, Rate: 3, ClosedFor: 9 * time.Second}, perSecond: 0},
		{Lane: Lane{ID: "web/c.example/E-1", Exit: "E-1", Base: 9, Rate: 9, ClosedFor: -time.Second}, perSecond: 2.05},
	}
	for i := range lanes {
		lanes[i].names = strings.ToLower(lanes[i].ID)
	}
	for _, tt := range []struct{ query, want string }{
		{"", "web/a.example/E-2 api/b.example/E-2 web/c.example/E-1 api/a.example/E-1 of 4"},
		{"sort=lane", "api/a.example/E-1 api/b.example/E-2 web/a.example/E-2 web/c.example/E-1 of 4"},
		{"sort=lane&order=desc&lanes=2", "web/c.example/E-1 web/a.example/E-2 of 4"},
		{"sort=sent&lanes=2", "web/c.example/E-1 api/b.example/E-2 of 4"},
		{"sort=sent&order=asc&lanes=2", "web/a.example/E-2 api/a.example/E-1 of 4"},
		{"sort=use&lanes=1", "api/a.example/E-1 of 4"},
		{"sort=budget&lanes=1", "web/c.example/E-1 of 4"},
		{"sort=waiting&lanes=1", "api/b.example/E-2 of 4"},
		{"sort=limited&lanes=1", "api/a.example/E-1 of 4"},
		{"sort=closed&lanes=2", "web/a.example/E-2 api/a.example/E-1 of 4"},
		{"sort=exit&order=desc&lanes=1", "api/b.example/E-2 of 4"},
		{"q=A.EXAMPLE", "web/a.example/E-2 api/a.example/E-1 of 2"},
		{"q=web+e-1", "web/c.example/E-1 of 1"},
		{"q=nothing", "of 0"},
		{"show=closed", "web/a.example/E-2 of 1"},
		{"show=waiting", "api/b.example/E-2 of 1"},
		{"show=slowed", "api/b.example/E-2 of 1"},
		{"lanes=0", "of 4"},
	} {
		q := mustQuery(t, tt.query)
		chosen, matched := q.choose(lanes)
		text := ""
		for _, l := range chosen {
			text += l.ID + " "
		}
		if got := text + fmt.Sprintf("of %d", matched); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.query, got, tt.want)
		}
	}
}

func TestChooseExits(t *testing.T) {
	exits := []exitSeen{
		{Exit: Exit{Name: "E-1", Seconds: []float64{1, 1}}},
		{Exit: Exit{Name: "E-2", Seconds: []float64{9}}},
		{Exit: Exit{Name: "E-3"}, closed: 1},
		{Exit: Exit{Name: "E-4", Seconds: []float64{4}}},
	}
	lanes := []laneSeen{{Lane: Lane{CountedBy: "E-4"}, names: "shop/shop.example/e-4"}}
	for query, want := range map[string]string{
		"":               "E-1 E-2 E-3 E-4 of 4",
		"exits=3":        "E-2 E-3 E-4 of 4", // what is closed, then the busiest, by name
		"exits=1":        "E-3 of 4",
		"q=e-2":          "E-2 of 1",
		"q=shop":         "E-4 of 1",
		"q=shop&exits=0": "of 1",
	} {
		q := mustQuery(t, query)
		chosen, matched := q.chooseExits(exits, lanes)
		text := ""
		for _, e := range chosen {
			text += e.Name + " "
		}
		if got := text + fmt.Sprintf("of %d", matched); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]float64{
		0: 0, 1: 1, 1.23456: 1.235, 0.00123456: 0.001235, 123.456789: 123.457, 98765.4321: 98765.432, 1e-9: 1e-9, -2.34567: -2.346, 5e-324: 0,
	} {
		if got := short(x); got != want {
			t.Errorf("short(%g) = %g, want %g", x, got, want)
		}
	}
}
