// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// mustReadBack checks that what Format writes is the same budget. Dialects of
// the file, and only they, need the file.
func mustReadBack(t *testing.T, b *policy.Budget, dialects string) {
	t.Helper()
	text := Format(b)
	p, err := Parse("format.yml", []byte(dialects+text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	got := *p.Budgets[0]
	want := *b
	// They are compiled anew by each reading.
	got.Dialect, want.Dialect = nil, nil
	if (p.Budgets[0].Dialect == nil) != (b.Dialect == nil) || b.Dialect != nil && b.Dialect.Name != p.Budgets[0].Dialect.Name {
		t.Errorf("got dialect %+v, want %+v", p.Budgets[0].Dialect, b.Dialect)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v\nfrom\n%s", got, want, text)
	}
}

// TestFormatExample holds that the budgets of the shipped file come back.
func TestFormatExample(t *testing.T) {
	const name = "../../scripts/egressd.example.yml"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	_, dialects, _ := strings.Cut(string(text), "\ndialects:")
	dialects, _, _ = strings.Cut(dialects, "\ntls:")
	for _, b := range p.Budgets {
		mustReadBack(t, b, "dialects:"+dialects+"\n")
	}
}

func TestFormat(t *testing.T) {
	for _, text := range []string{
		`{rate: 1/s}`,
		`{name: "off", rate: 0.3333/s, mode: "off"}`,
		`{name: "1e5", match: {hosts: ["*", 10.0.0.0/8, "2001:db8::/32", "::1", 127.0.0.1, 0x1f.example, 7.example]}, rate: auto, start: 7/13s}`,
		`{name: a.b_c-1, match: {hosts: ["*.a.example"], ports: [1, 65535], path: "/a/%20:{", methods: [GET, "NULL", M-SEARCH]}, rate: 33/min, burst: 0.5}`,
		`{name: "no", per: [], unit: connections, concurrency: 7, on_full: drop, fail: closed, headers: "off"}`,
		`{per: [path, site, session, exit], window: {limit: 5, per: 90m}, cost: {units: 3, header: "X-Cost"}}`,
		`{rate: 2/s, cost: 5, headers: github, recovery: {factor: 1, step: 1}, cooldown: {default: 250ms, max: 5m, spread: 12.5%, statuses: [429, 430]}}`,
		`{rate: 1/s, queue: {max: 0, max_wait: 0s, fair_by: uid}, retry: {absorb: false, attempts: 5, max_body: 64KiB, statuses: []}}`,
		`{rate: 1/s, retry: {absorb: true}, tls: {mode: observe, pace: connections}}`,
	} {
		p, err := Parse("test.yml", []byte("budgets:\n  - "+text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		mustReadBack(t, p.Budgets[0], "")
	}
}

// TestFormatReads holds how it looks to people.
func TestFormatReads(t *testing.T) {
	p, err := Parse("test.yml", []byte(`budgets: [{name: store, match: {hosts: [store.example.com], ports: [8080]}, rate: 90/min, per: [site, exit], mode: shadow}]`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `budgets:
  # instead of budget store
  - name: store
    match: {hosts: [store.example.com], ports: [8080]}
    per: [site, exit]
    rate: 90/min
    mode: shadow
`
	if got := Format(p.Budgets[0], "instead of budget store"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
