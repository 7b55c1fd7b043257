// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/egressd/egressd/policy/verdict"
)

// reader collects the errors of one file.
type reader struct {
	file string
	errs Errors
	// dialects are those of the file by name; nil where all fields are bad.
	dialects map[string]*verdict.Dialect
	exits    exitNames
	flights  bool // tls.pace for budgets that do not say
}

// exitNames is what pools must know of exits besides the good ones.
type exitNames struct {
	names   map[string]bool  // of all in the file, good or not
	users   map[string]value // where a good one says its user
	unnamed bool             // some name is not known
}

func (r *reader) add(line int, msg string) {
	r.errs = append(r.errs, Error{File: r.file, Line: max(line, 1), Msg: msg})
}

// document parses text as exactly one YAML document and returns its root.
func (r *reader) document(text []byte) (value, bool) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		r.empty()
		return value{}, false
	} else if err != nil {
		r.syntax(text, err)
		return value{}, false
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		r.add(second.Line, "a second document begins here; a policy is one document: remove the line ---")
		return value{}, false
	case !errors.Is(err, io.EOF):
		r.syntax(text, err)
		return value{}, false
	}
	if len(doc.Content) != 1 || isNull(doc.Content[0]) {
		r.empty()
		return value{}, false
	}
	return value{r: r, node: doc.Content[0]}, true
}

func (r *reader) empty() {
	r.add(1, "the file is empty; write at least one budget, as in budgets: [{rate: 1/s}]")
}

// yamlLine is the place of an error as the YAML package tells it.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax records an error of the YAML package in our own form.
func (r *reader) syntax(text []byte, err error) {
	msg, line := err.Error(), 1
	if found := yamlLine.FindStringSubmatch(msg); found != nil {
		msg = msg[len(found[0]):]
		if n, err := strconv.Atoi(found[1]); err == nil {
			line = n
		}
	}
	if n, ok := brokenLine(text); ok {
		line = n
	}
	msg = "not valid YAML: " + strings.Join(strings.Fields(msg), " ")
	switch { // the usual slips with host patterns
	case strings.Contains(msg, "alphabetic or numeric character") && bytes.Contains(text, []byte("*")):
		msg += `; put values that begin with * in quotes, as in "*.example.com"`
	case strings.Contains(msg, "expected node content") && bytes.Contains(text, []byte("::")):
		msg += `; put values that begin with : in quotes, as in "::1"`
	}
	r.add(line, msg)
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
