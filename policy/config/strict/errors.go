// SPDX-License-Identifier: Apache-2.0

package strict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a file.
type Error struct {
	File string
	Line int    // from 1
	Msg  string // one line: the key, what is wrong, what to do
}

// Error returns "file:line: message", which editors can follow.
func (e Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }

// Errors are all mistakes of a file in the order of their lines, never none.
type Errors []Error

// Error returns one line per mistake, without a line break at the end.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	return e
}
