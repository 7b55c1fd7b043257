// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/verdict"
)

// Dialects may come after the budgets that name them, and say all that a rule
// of the built-in table can.
func TestDialects(t *testing.T) {
	p := mustParse(t, `
budgets:
  - {rate: 1/s, headers: mine}
  - {rate: 1/s, headers: github}
  - {rate: 1/s}
  - {rate: 1/s, headers: off}
dialects:
  - name: mine
    fields:
      - {header: X-My-Left, says: remaining}
      - {header: x-my-reset, says: reset, unit: epoch-ms, group: tokens, window: 1h, to_full: true}
  - name: other
    fields: [{header: x-other-*, says: list}]
`)
	rule := []verdict.FieldRule{
		{Header: "x-my-left", Says: verdict.SaysRemaining},
		{Header: "x-my-reset", Says: verdict.SaysReset, Unit: verdict.UnitEpochMs, Group: "tokens", Window: time.Hour, ToFull: true},
	}
	mine, err := verdict.NewDialect("mine", rule)
	if err != nil {
		t.Fatal(err)
	}
	other, err := verdict.NewDialect("other", []verdict.FieldRule{{Header: "x-other-*", Says: verdict.SaysList}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []*verdict.Dialect{mine, other}; !reflect.DeepEqual(p.Dialects, want) {
		t.Errorf("got dialects %+v, want %+v", p.Dialects, want)
	}
	for i, want := range []*verdict.Dialect{p.Dialects[0], verdict.Builtin("github"), nil, nil} {
		if b := p.Budgets[i]; b.Dialect != want || b.HeadersOff != (i == 3) {
			t.Errorf("%s: got dialect %v, headers off %v; want %v, %v", b.Name, b.Dialect, b.HeadersOff, want, i == 3)
		}
	}
}

// A name that resembles none gets them all: those of the file, then those
// built in.
func TestUnknownDialect(t *testing.T) {
	for _, name := range []string{"", "something-else-entirely"} {
		_, err := Parse("f", []byte(`
budgets: [{rate: 1/s, headers: "`+name+`"}]
dialects:
  - {name: zzzzzzzz, fields: [{header: x, says: limit}]}
  - {name: aaaaaaaa, fields: [{header: x, says: limit}]}
`))
		known := slices.Concat([]string{"auto", "off", "aaaaaaaa", "zzzzzzzz"}, verdict.BuiltinNames())
		want := `f:2: budgets[0].headers: "` + name + `" is no dialect; known here are ` + strings.Join(known, ", ")
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
}
