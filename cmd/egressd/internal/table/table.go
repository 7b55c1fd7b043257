// SPDX-License-Identifier: Apache-2.0

// Package table prints rows for people: columns aligned, numbers to the right,
// no line longer than the terminal where that can be helped. Programs read
// JSON instead.
package table

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Column is one column. Right puts its cells to the right, as numbers want it.
// Flex is a column whose cells may be cut, with an ellipsis, when lines would
// be too long.
type Column struct {
	Title string
	Right bool
	Flex  bool
}

const (
	gap     = 2 // spaces between columns
	minFlex = 8 // characters to which a flexible column shrinks at most
)

// Write prints a heading and rows to w. A row has one cell for each column.
// Lines are kept to width characters by cutting flexible columns, the widest
// first; zero is no bound.
func Write(w io.Writer, width int, columns []Column, rows [][]string) error {
	sizes := make([]int, len(columns))
	for i, c := range columns {
		sizes[i] = utf8.RuneCountInString(c.Title)
		for _, row := range rows {
			sizes[i] = max(sizes[i], utf8.RuneCountInString(printable(row[i])))
		}
	}
	if width > 0 {
		shrink(sizes, columns, width)
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.Title
	}
	var out strings.Builder
	writeRow(&out, columns, sizes, titles)
	for _, row := range rows {
		writeRow(&out, columns, sizes, row)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// shrink takes characters from the widest flexible column, one by one, until
// a line fits or nothing can be taken any more.
func shrink(sizes []int, columns []Column, width int) {
	total := gap * (len(sizes) - 1)
	for _, n := range sizes {
		total += n
	}
	for ; total > width; total-- {
		widest := -1
		for i, c := range columns {
			if c.Flex && sizes[i] > minFlex && (widest < 0 || sizes[i] > sizes[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		sizes[widest]--
	}
}

func writeRow(out *strings.Builder, columns []Column, sizes []int, cells []string) {
	var row strings.Builder
	for i, cell := range cells {
		if i > 0 {
			row.WriteString(strings.Repeat(" ", gap))
		}
		cell = cut(printable(cell), sizes[i])
		pad := strings.Repeat(" ", sizes[i]-utf8.RuneCountInString(cell))
		if columns[i].Right {
			row.WriteString(pad + cell)
		} else {
			row.WriteString(cell + pad)
		}
	}
	out.WriteString(strings.TrimRight(row.String(), " "))
	out.WriteByte('\n')
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:n-1]) + "…"
}

// printable takes control characters out: cells come from the network, and a
// terminal obeys them.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
