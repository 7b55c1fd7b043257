// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/verdict"
)

// reader collects the errors of one policy file, and what some keys must know
// of others.
type reader struct {
	strict.Reader
	// dialects are those of the file by name; nil where all fields are bad.
	dialects map[string]*verdict.Dialect
	exits    exitNames
	tls      budgetTLS // for budgets that do not say
	fleet    *policy.Fleet
	noFleet  bool // there is one, and it is bad
}

// exitNames is what pools must know of exits besides the good ones.
type exitNames struct {
	names   map[string]bool  // of all in the file, good or not
	users   map[string]value // where a good one says its user
	unnamed bool             // some name is not known
}

// document parses text as exactly one YAML document and returns its root.
func (r *reader) document(text []byte) (value, bool) {
	root, second, broken := r.Decode(text)
	switch {
	case broken != nil:
		r.syntax(text, broken.Line, broken.Msg)
	case second > 0:
		r.Add(second, "a second document begins here; a policy is one document: remove the line ---")
	case root.IsNull():
		r.Add(1, "the file is empty; write at least one budget, as in budgets: [{rate: 1/s}]")
	default:
		return value{root, r}, true
	}
	return value{}, false
}

// syntax records an error of the YAML package, with a better line if one can
// be found.
func (r *reader) syntax(text []byte, line int, msg string) {
	if n, ok := brokenLine(text); ok {
		line = n
	}
	switch { // the usual slips with host patterns
	case strings.Contains(msg, "alphabetic or numeric character") && bytes.Contains(text, []byte("*")):
		msg += `; put values that begin with * in quotes, as in "*.example.com"`
	case strings.Contains(msg, "expected node content") && bytes.Contains(text, []byte("::")):
		msg += `; put values that begin with : in quotes, as in "::1"`
	}
	r.Add(line, msg)
}

// brokenLine finds the line of a syntax error: the one after the longest run
// of lines that is valid. The YAML package names the line where the enclosing
// block begins, or the end of the file.
func brokenLine(text []byte) (int, bool) {
	const (
		largest = 1 << 18 // bytes of a file worth the effort
		spread  = 20      // lines of one flow value, quoted text and the like
	)
	if len(text) > largest {
		return 0, false
	}
	ends := []int{0} // ends[i] is where i lines end
	for line := range bytes.Lines(text) {
		ends = append(ends, ends[len(ends)-1]+len(line))
	}
	good := 0 // lines that are valid together
	for {
		for bad := len(ends) - 1; bad-good > 1; {
			if middle := (good + bad) / 2; valid(text[:ends[middle]]) {
				good = middle
			} else {
				bad = middle
			}
		}
		// What begins here may only be longer than a line: look behind it.
		next := good + 2
		for next < len(ends)-1 && next <= good+spread && !valid(text[:ends[next]]) {
			next++
		}
		if next >= len(ends)-1 || next > good+spread {
			return good + 1, true
		}
		good = next
	}
}

// valid reports whether text is YAML, of any number of documents.
func valid(text []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}
