// SPDX-License-Identifier: Apache-2.0

// Package strict reads YAML files of which nothing may be overlooked: an
// unknown key, a key given twice, an anchor, a tag and a value left out are
// errors with file and line, and all errors of a file are collected.
//
// It knows no key itself. The package of a file walks the tree and says what
// each value must be; a value that it does not ask for is one it has not
// checked.
package strict

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reader collects the errors of one file. One goroutine uses it.
type Reader struct {
	File string // as messages name it
	Noun string // what the file is: "policy"
	// Key is how a key is written, for who wrote none: "rate: 1/s". If it is
	// empty, the message lists the keys.
	Key string
	// Unknown ends the message about an unknown key. If it is nil, the message
	// lists the keys.
	Unknown func(key string, known []string) string

	Errs Errors // so far, in the order in which they were found
}

// Add records an error.
func (r *Reader) Add(line int, msg string) {
	r.Errs = append(r.Errs, Error{File: r.File, Line: max(line, 1), Msg: msg})
}

// Err is nil, or all errors in the order of their lines, of type Errors.
func (r *Reader) Err() error {
	if len(r.Errs) == 0 {
		return nil
	}
	return r.Errs.sorted()
}

// yamlLine is the place of an error as the YAML package tells it.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// Decode parses text and records nothing. root is the value of the first
// document, null if the text is empty; second is the line where another
// document begins, 0 if none does. broken is where text is no YAML, as far as
// the YAML package knows the line: in the first document if root is the zero
// Value, and else behind it.
func (r *Reader) Decode(text []byte) (root Value, second int, broken *Error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return Value{}, 0, r.syntax(err)
	}
	root = Value{r: r, node: &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}}
	if len(doc.Content) == 1 {
		root.node = doc.Content[0]
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return root, next.Line, nil
	case !errors.Is(err, io.EOF):
		return root, 0, r.syntax(err)
	}
	return root, 0, nil
}

// syntax is an error of the YAML package in our own form.
func (r *Reader) syntax(err error) *Error {
	msg, line := err.Error(), 1
	if found := yamlLine.FindStringSubmatch(msg); found != nil {
		msg = msg[len(found[0]):]
		if n, err := strconv.Atoi(found[1]); err == nil {
			line = n
		}
	}
	return &Error{File: r.File, Line: line, Msg: "not valid YAML: " + strings.Join(strings.Fields(msg), " ")}
}
