// SPDX-License-Identifier: Apache-2.0

package strict

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// read reads keys a (a scalar) and b (a list of scalars), and returns what is
// sound in the order of the file.
func read(r *Reader, text []byte) (got []string) {
	root, second, broken := r.Decode(text)
	switch {
	case broken != nil:
		r.Add(broken.Line, broken.Msg)
		return nil
	case second > 0:
		r.Add(second, "second")
		return nil
	case !root.Sound():
		return nil
	}
	root.Mapping(
		Field{"a", func(v Value) { got = append(got, v.Path()+"="+v.Raw()) }},
		Field{"b", func(v Value) {
			if !v.IsList() {
				v.Reject("must be a list%s", v.ButIs())
				return
			}
			for item := range v.Items() {
				got = append(got, item.Path()+"="+item.Raw())
			}
		}},
	)
	return got
}

// The YAML package names the line where the enclosing block begins.
func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		got, errs  []string
	}{
		{"all is well", "b: [x, 'y']\na: 1\n", []string{"b[0]=x", "b[1]=y", "a=1"}, nil},
		{"nothing", "", nil, []string{"f:1: the thing has no value; give it one or remove the line"}},
		{"only a comment", "\n# here\n", nil, []string{"f:1: the thing has no value; give it one or remove the line"}},
		{"no mapping", "[a]", nil, []string{"f:1: the thing must be a mapping; the keys are a, b"}},
		{"unknown key", "a: 1\nc: 2\n", []string{"a=1"}, []string{"f:2: c: unknown key; known here are a, b"}},
		{"strange key", "\"c d\": 2\n", nil, []string{`f:1: "c d": unknown key; known here are a, b`}},
		{"key twice", "a: 1\n\na: 2\n", []string{"a=1"}, []string{"f:3: a: is given twice, first on line 1; remove one"}},
		{"key that is a list", "[a]: 1\n", nil, []string{"f:1: the thing has a key that is no plain word; the keys are a, b"}},
		{"no value", "a:\n\nb: [x, ]\n", []string{"b[0]=x"}, []string{"f:1: a: has no value; give it one or remove the line"}},
		{"tag", "a: !!str 1\n", nil, []string{`f:1: a: has the YAML tag "!!str"; remove it`}},
		{"alias", "a: &x 1\nb: [*x, y]\n", []string{"b[1]=y"}, []string{
			"f:1: a: uses an anchor or an alias, which are not supported; write the value out",
			"f:2: b[0]: uses an anchor or an alias, which are not supported; write the value out",
		}},
		{"order of lines", "b:\n  5\nc: 1\n", nil, []string{`f:2: b: must be a list, not "5"`, "f:3: c: unknown key; known here are a, b"}},
		{"second document", "a: 1\n---\na: 2\n", nil, []string{"f:2: second"}},
		{"no YAML", "a: 1\nb: ]\n", nil, []string{"f:1: not valid YAML: did not find expected node content"}},
		{"no YAML behind it", "a: 1\n---\n]\n", nil, []string{"f:2: not valid YAML: did not find expected node content"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Reader{File: "f", Noun: "thing"}
			got := read(r, []byte(tt.text))
			if !slices.Equal(got, tt.got) {
				t.Errorf("got %q, want %q", got, tt.got)
			}
			var lines []string
			if err := r.Err(); err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if !slices.Equal(lines, tt.errs) {
				t.Errorf("got errors\n%q, want\n%q", lines, tt.errs)
			}
		})
	}
}

func TestWordsOfTheReader(t *testing.T) {
	r := &Reader{File: "f", Noun: "thing", Key: "a: 1", Unknown: func(key string, known []string) string {
		return key + " is none of " + Series(known, "and")
	}}
	read(r, []byte("c: 1\n[a]: 1\n"))
	want := "f:1: c: unknown key; c is none of a and b\nf:2: the thing has a key that is no plain word; write it as in a: 1"
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDecode(t *testing.T) {
	r := &Reader{File: "f"}
	for _, tt := range []struct {
		text           string
		null           bool
		tag            string
		second, broken int
	}{
		{"", true, "!!null", 0, 0},
		{"~", true, "!!null", 0, 0},
		{"~\n---\na: 1", true, "!!null", 2, 0},
		{"~\n---\n]", true, "!!null", 0, 2},
		{"a: 1", false, "!!map", 0, 0},
		{"!!null {}", false, "!!null", 0, 0},
		{"a: ]", false, "", 0, 1},
	} {
		root, second, broken := r.Decode([]byte(tt.text))
		line := 0
		if broken != nil {
			line = broken.Line
		}
		if root.IsNull() != tt.null || root.Tag() != tt.tag || second != tt.second || line != tt.broken {
			t.Errorf("%q: got null %v, tag %q, second %d, broken %d; want %+v", tt.text, root.IsNull(), root.Tag(), second, line, tt)
		}
	}
	if len(r.Errs) > 0 {
		t.Errorf("got errors %v, want none recorded", r.Errs)
	}
}

func TestParseDecimal(t *testing.T) {
	for s, want := range map[string]float64{"0": 0, "10": 10, "0.5": 0.5, "12.050": 12.05} {
		if got, err := ParseDecimal(s); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", ".", ".5", "1.", "01", "00", "-1", "+1", "1e3", "1_0", "0x1", "1.2.3", "inf", "1 ", "1\n", strings.Repeat("9", 400)} {
		if got, err := ParseDecimal(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, got)
		}
	}
}

// Whatever a file says, each of its values is read or complained of, in one
// line each that an editor can follow.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nb: [x, y]\n", "a: &x 1\nb: [*x]\n", "a:\nb:\n", "a: !!str 1\n", "---\n---\n", "a: 1\na: 2\n", "? [a]\n: 1\n", "a: ]", "\xff", "b: {a: 1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &Reader{File: "f", Noun: "thing"}
		got := read(r, text)
		err := r.Err()
		if err == nil {
			if root, _, _ := r.Decode(text); root.Len() > 2 {
				t.Errorf("%d keys and no error", root.Len())
			}
			return
		}
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatalf("got %q and error %v of type %T, want Errors", got, err, err)
		}
		last := 1
		for _, e := range errs {
			if e.File != "f" || e.Line < last || e.Msg == "" || strings.ContainsAny(e.Msg, "\n\r") {
				t.Errorf("got error %+v after line %d", e, last)
			}
			last = e.Line
		}
	})
}
