// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
)

// style is how a line looks, where there are colours.
type style uint8

const (
	plain   style = iota
	title         // heading of a table
	alert         // something is closed, or wrong
	warning       // something is slowed, or waits
	faint         // of no matter now
)

var sequences = map[style]string{
	title: "\x1b[1m", alert: "\x1b[31m", warning: "\x1b[33m", faint: "\x1b[2m",
}

// line is one line of a frame.
type line struct {
	text  string
	style style
}

// Sizes below which parts of a frame are left out.
const (
	wide      = 60 // characters, for all columns
	slim      = 45 // … for the counts of limits
	minLanes  = 4  // lines of lanes, before exits and events take any
	mostExits = 6
)

// frame is the lines of a terminal of that size, at most height of them and
// none longer than width. page is the number of lanes in it.
func (v *view) frame(width, height int) (lines []line, page int) {
	width, height = max(width, 1), max(height, 1)
	head, foot := v.head(), v.foot(width)
	exits, events := v.exits(width), v.events()
	// The lanes are what matters most; what they leave goes to exits and events.
	room := height - len(head) - len(foot)
	lanes := v.lanes(width)
	spare := max(0, room-min(len(lanes), minLanes+1)-1)
	exits = exits[:min(len(exits), 1+mostExits, spare)]
	if len(exits) < 2 {
		exits = nil // a heading alone says nothing
	}
	spare -= len(exits)
	wanted := min(len(events), max(spare/3, min(2, spare)))
	events = events[len(events)-wanted:]
	room -= len(exits) + len(events)
	page = max(1, room-1)
	if len(lanes) > 1 {
		first := min(v.top, max(0, len(lanes)-1-page))
		rest := lanes[1+first:]
		lanes = append(lanes[:1:1], rest[:min(len(rest), page)]...)
	}
	lines = append(lines, head...)
	lines = append(lines, exits...)
	lines = append(lines, lanes[:min(len(lanes), max(room, 0))]...)
	for len(lines) < height-len(events)-len(foot) {
		lines = append(lines, line{})
	}
	lines = append(lines, events...)
	lines = append(lines, foot...)
	lines = lines[:min(len(lines), height)]
	for i := range lines {
		lines[i].text = v.plain(cut(lines[i].text, width))
	}
	return lines, page
}

// all is a frame without a bound to its height, for scripts.
func (v *view) all(width int) string {
	var out strings.Builder
	for _, part := range [][]line{v.head(), v.exits(width), v.lanes(width), v.events()} {
		for _, l := range part {
			text := l.text
			if width > 0 {
				text = cut(text, width)
			}
			out.WriteString(v.plain(text))
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// brief is a frame without keys and empty lines, ended by one.
func (v *view) brief(width, height int) string {
	lines, _ := v.frame(width, height)
	var out strings.Builder
	for _, l := range lines[:max(len(lines)-1, 0)] {
		if l.text != "" {
			out.WriteString(l.text + "\n")
		}
	}
	return out.String() + "\n"
}

// head says how the daemon fares.
func (v *view) head() []line {
	s := &v.seen.status
	if s.PID == 0 {
		return []line{v.trouble(line{text: "egressd: waiting for the daemon"})}
	}
	first := fmt.Sprintf("egressd %s, pid %d, up %s: %d lanes, %d connections, %d waiting",
		s.Version, s.PID, short(v.seen.at.Sub(s.Started)), s.Lanes, s.Flows, s.Waiting)
	lines := []line{v.trouble(line{text: first})}
	switch k := s.Kernel; {
	case !s.Config.OK:
		lines = append(lines, line{"LAST RELOAD FAILED: " + s.Config.Error, alert})
	case k != nil && !k.Attached:
		lines = append(lines, line{"NOT ATTACHED: every connection goes past egressd", alert})
	case k != nil && !k.Canary.OK && !k.Canary.At.IsZero():
		lines = append(lines, line{"CANARY FAILED: " + k.Canary.Error, alert})
	}
	for i := range lines {
		lines[i].text = clean(lines[i].text)
	}
	return lines
}

// trouble says first that the daemon does not answer, where it does not.
func (v *view) trouble(l line) line {
	switch {
	case v.err != nil:
		return line{clean("NO ANSWER: " + v.err.Error()), alert}
	case v.paused:
		return line{"PAUSED " + l.text, warning}
	}
	return l
}

func (v *view) foot(width int) []line {
	turned := ""
	if v.turned {
		turned = " reversed"
	}
	m := v.marks()
	text := fmt.Sprintf("q quit  %s scroll  %s sort: %s%s  r reverse  p pause", m.upDown, m.leftRight, orders[v.sort].name, turned)
	if utf8.RuneCountInString(text) > width {
		text = "q quit " + m.leftRight + " " + orders[v.sort].name + turned
	}
	return []line{{text, faint}}
}

// exits is a table of the exits, those that send most first.
func (v *view) exits(width int) []line {
	exits := slices.Clone(v.seen.exits)
	slices.SortStableFunc(exits, func(a, b admin.Exit) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Exit, b.Exit))
	})
	columns := []table.Column{{Title: "EXIT", Flex: true}, {Title: "SENT/S", Right: true}, {Title: "429S", Right: true}, {Title: "CLOSED", Right: true}}
	narrow := width > 0 && width < wide
	if !narrow {
		columns = append(columns, table.Column{Title: "LAST " + short(time.Duration(sparks)*v.cfg.every())})
	}
	rows, styles := [][]string{}, []style{}
	for _, e := range exits {
		closed, s := "-", plain
		if e.Closed > 0 {
			closed, s = fmt.Sprintf("%d (%s)", e.Closed, short(seconds(e.ClosedFor))), alert
		}
		cells := []string{e.Exit, number(e.PerSecond), strconv.FormatUint(e.TooMany, 10), closed}
		if !narrow {
			cells = append(cells, v.marks().sparkline(v.steps(e.Exit)))
		}
		rows, styles = append(rows, cells), append(styles, s)
	}
	return tabled(width, columns, rows, styles)
}

// lanes is a table of the lanes.
func (v *view) lanes(width int) []line {
	narrow := width > 0 && width < wide
	columns := []table.Column{{Title: "LANE", Flex: true}, {Title: "SENT/S", Right: true}}
	if !narrow {
		columns = append(columns, table.Column{Title: "BUDGET", Right: true}, table.Column{Title: "USE", Right: true})
	}
	columns = append(columns, table.Column{Title: "WAIT", Right: true})
	counts := width == 0 || width >= slim
	if counts {
		columns = append(columns, table.Column{Title: "429S", Right: true})
	}
	columns = append(columns, table.Column{Title: "STATE", Flex: !narrow})
	rows, styles := [][]string{}, []style{}
	for _, r := range v.rows() {
		cells := []string{r.Lane.Lane, number(r.perSecond)}
		if !narrow {
			budget, use := "-", "-"
			if r.BaseRate > 0 {
				budget, use = number(r.BaseRate)+"/s", strconv.Itoa(int(math.Round(100*r.use())))+"%"
			}
			cells = append(cells, budget, use)
		}
		state, s := v.state(&r, narrow)
		cells = append(cells, strconv.FormatInt(r.Waiting, 10))
		if counts {
			cells = append(cells, strconv.FormatUint(r.Limited, 10))
		}
		cells = append(cells, state)
		rows, styles = append(rows, cells), append(styles, s)
	}
	if len(rows) == 0 {
		return []line{{"No lane yet: no request has met a budget.", faint}}
	}
	return tabled(width, columns, rows, styles)
}

// state is how a lane is, in short, and the style of its line.
func (v *view) state(r *row, narrow bool) (string, style) {
	s := plain
	switch {
	case !r.Open:
		text := "closed " + short(seconds(r.ClosedFor))
		if !narrow {
			if c, known := v.closed[r.Lane.Lane]; known && c.whole > 0 {
				text += " " + v.marks().gauge(r.ClosedFor/c.whole)
			}
			if r.Reason != "" {
				text += " " + r.Reason
			}
		}
		return text, alert
	case r.Probing || r.Rate < r.BaseRate*0.999 || r.Stalled > 0 || r.Waiting > 0:
		s = warning
	case r.perSecond == 0:
		s = faint
	}
	if !narrow {
		return v.cfg.State(r.Lane), s
	}
	switch {
	case r.Probing:
		return "probe", s
	case r.Rate < r.BaseRate*0.999:
		return "slowed", s
	}
	return "open", s
}

// events are what happened last.
func (v *view) events() []line {
	lines := make([]line, len(v.seen.events))
	for i, e := range v.seen.events {
		parts := []string{e.Time.Local().Format(time.TimeOnly), e.Kind}
		if e.Lane != "" {
			parts = append(parts, e.Lane)
		}
		if e.Wait != 0 {
			parts = append(parts, short(seconds(e.Wait)))
		}
		if e.Detail != "" {
			parts = append(parts, e.Detail)
		}
		lines[i] = line{clean(strings.Join(parts, " ")), faint}
	}
	return lines
}

// tabled is a table in lines, of which the first is the heading.
func tabled(width int, columns []table.Column, rows [][]string, styles []style) []line {
	if len(rows) == 0 {
		return nil
	}
	var out strings.Builder
	// A builder takes everything.
	_ = table.Write(&out, width, columns, rows)
	var lines []line
	for text := range strings.Lines(out.String()) {
		s := title
		if n := len(lines); n > 0 {
			s = styles[n-1]
		}
		lines = append(lines, line{strings.TrimSuffix(text, "\n"), s})
	}
	return lines
}

// number writes a number with as many digits as a column has room for.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 9.95:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case x >= 0.1:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'f', 4, 64)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// short writes a time in few characters.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Round(time.Second)/time.Second)) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:n-1]) + "…"
}

// clean takes out what a terminal would obey: it may quote what came from the
// network.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
