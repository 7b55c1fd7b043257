// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/policy/config/strict"
)

// ChartStyle says how charts are drawn.
type ChartStyle struct {
	Width int     // characters in a line
	Top   float64 // what the highest bar stands for; see Result.Top
	ASCII bool    // no other characters
}

const (
	maxRows  = 8
	minWidth = 20
	maxBar   = 4 // characters to a second, the gap included
)

// marks are the characters of a chart.
type marks struct {
	kinds  [numKinds]string
	parts  []string // of a served one, from the least to nearly all
	corner string
	line   string
	side   string
}

var (
	blocks = marks{
		kinds:  [numKinds]string{served: "█", limited: "▒", failed: "×"},
		parts:  []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇"},
		corner: "└", line: "─", side: "│",
	}
	letters = marks{
		kinds:  [numKinds]string{served: "#", limited: "!", failed: "x"},
		parts:  []string{".", "#"},
		corner: "+", line: "-", side: "|",
	}
)

func (s ChartStyle) marks() *marks {
	if s.ASCII {
		return &letters
	}
	return &blocks
}

// Legend tells what the characters stand for.
func (s ChartStyle) Legend() string {
	m := s.marks()
	return fmt.Sprintf("%s served  %s limited  %s error", m.kinds[served], m.kinds[limited], m.kinds[failed])
}

// Top is the most requests sent in a second by any strategy: charts that are
// to be compared share it.
func (r *Result) Top() float64 {
	top := 0.0
	for i := range r.Strategies {
		s := &r.Strategies[i].Series
		for k := range s.OK {
			top = max(top, s.at(k).total())
		}
	}
	return top
}

// bar is one second, or the busiest of several.
type bar [3]float64 // by kind: served, limited, failed

func (b bar) total() float64 { return b[served] + b[limited] + b[failed] }

func (s *Series) at(i int) bar { return bar{s.OK[i], s.Limited[i], s.Errors[i]} }

// Chart draws the requests that were sent in each second, one bar upon the
// other for what became of them. Where there are more seconds than room, a
// column is the busiest second of its several. A limit or an error is always
// seen, however small its part.
func (f *Figures) Chart(style ChartStyle) string {
	m := style.marks()
	label := strconv.FormatFloat(math.Ceil(style.Top), 'f', -1, 64)
	side := max(len(label), 4)
	room := max(style.Width, minWidth) - side - 2
	n := max(len(f.Series.OK), 1)
	per := (n + room - 1) / room
	columns := (n + per - 1) / per
	width := min(max(room/columns, 1), maxBar)
	ink := width
	if width > 2 {
		ink-- // a gap between bars
	}
	rows := int(math.Min(maxRows, math.Max(1, math.Ceil(style.Top))))
	cells := make([][]string, columns)
	for c := range cells {
		var most bar
		for i := c * per; i < min((c+1)*per, len(f.Series.OK)); i++ {
			if b := f.Series.at(i); b.total() > most.total() {
				most = b
			}
		}
		cells[c] = m.column(most, rows, style.Top/float64(rows))
	}
	var out strings.Builder
	for row := rows - 1; row >= 0; row-- {
		var line strings.Builder
		at := ""
		if row == rows-1 && style.Top > 0 {
			at = label
		}
		fmt.Fprintf(&line, "%*s %s", side, at, m.side)
		for _, column := range cells {
			line.WriteString(strings.Repeat(column[row], ink) + strings.Repeat(" ", width-ink))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	fmt.Fprintf(&out, "%*s %s%s\n", side, "0", m.corner, strings.Repeat(m.line, columns*width))
	out.WriteString(axis(side+2, columns*width, time.Duration(n)*time.Second) + "\n")
	return out.String()
}

// column draws one bar, from the bottom. unit is what a row stands for.
func (m *marks) column(b bar, rows int, unit float64) []string {
	cells := make([]string, rows)
	top := -1
	var seen [numKinds]bool
	for row := range cells {
		low := float64(row) * unit
		if cells[row] = " "; b.total() <= low {
			continue
		}
		top = row
		filled := math.Min(b.total()-low, unit)
		k := served
		switch middle := low + filled/2; {
		case middle >= b[served]+b[limited]:
			k = failed
		case middle >= b[served]:
			k = limited
		}
		seen[k] = true
		cells[row] = m.kinds[k]
		if part := int(filled / unit * float64(len(m.parts)+1)); k == served && part <= len(m.parts) && filled < unit {
			cells[row] = m.parts[max(part-1, 0)]
		}
	}
	for _, k := range []kind{failed, limited} {
		if b[k] > 0 && !seen[k] && top >= 0 {
			cells[top] = m.kinds[k]
			top = max(top-1, 0)
		}
	}
	return cells
}

// axis writes the beginning, the middle and the end of a span under a line.
func axis(indent, width int, span time.Duration) string {
	line := []rune(strings.Repeat(" ", indent+width+8))
	put := func(at int, text string) { copy(line[max(at, 0):], []rune(text)) }
	put(indent, "0s")
	if middle := strict.Duration(span / 2); width >= 30 {
		put(indent+width/2-utf8.RuneCountInString(middle)/2, middle)
	}
	end := strict.Duration(span)
	put(indent+max(width-len(end), 4), end)
	return strings.TrimRight(string(line), " ")
}
