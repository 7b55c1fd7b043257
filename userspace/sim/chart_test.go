// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/policy/config/strict"
)

func seconds(n int, bars map[int]bar) *Figures {
	f := &Figures{Series: Series{StepMS: 1000, OK: make([]float64, n), Limited: make([]float64, n), Errors: make([]float64, n), Refused: make([]float64, n)}}
	for i, b := range bars {
		f.Series.OK[i], f.Series.Limited[i], f.Series.Errors[i] = b[served], b[limited], b[failed]
	}
	return f
}

func TestChart(t *testing.T) {
	for _, tt := range []struct {
		name  string
		f     *Figures
		style ChartStyle
		want  string
	}{
		{"one for each request", seconds(4, map[int]bar{0: {1, 2, 0}, 1: {3, 0, 0}, 3: {0, 0, 1}}), ChartStyle{Width: 40, Top: 3}, `
   3 │▒▒▒ ███
     │▒▒▒ ███
     │███ ███     ×××
   0 └────────────────
      0s            4s
`},
		{"in ASCII", seconds(4, map[int]bar{0: {1, 2, 0}, 1: {3, 0, 0}, 3: {0, 0, 1}}), ChartStyle{Width: 40, Top: 3, ASCII: true}, `
   3 |!!! ###
     |!!! ###
     |### ###     xxx
   0 +----------------
      0s            4s
`},
		{"parts of a row", seconds(8, map[int]bar{0: {80, 0, 0}, 1: {75, 0, 0}, 2: {11, 0, 0}, 3: {1, 0, 0}, 4: {20, 0, 0}}), ChartStyle{Width: 30, Top: 80}, `
  80 │██ ▄▄
     │██ ██
     │██ ██
     │██ ██
     │██ ██
     │██ ██
     │██ ██ ▁▁    ██
     │██ ██ ██ ▁▁ ██
   0 └────────────────────────
      0s                    8s
`},
		{"more seconds than room", seconds(60, map[int]bar{0: {1, 0, 0}, 31: {0, 2, 0}, 32: {1, 0, 0}}), ChartStyle{Width: 26, Top: 2, ASCII: true}, `
   2 |          !
     |#         !
   0 +--------------------
      0s                1m
`},
		{"nothing", seconds(1, nil), ChartStyle{Width: 10, ASCII: true}, `
     |
   0 +----
      0s  1s
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f.Chart(tt.style); got != tt.want[1:] {
				t.Errorf("got\n%swant%s", got, tt.want)
			}
		})
	}
}

// One limit among a thousand requests is seen, and so is one error.
func TestChartShowsTheRare(t *testing.T) {
	f := seconds(3, map[int]bar{0: {1000, 1, 0}, 1: {1000, 0, 1}, 2: {1000, 1, 1}})
	got := f.Chart(ChartStyle{Width: 80, Top: 1002, ASCII: true})
	if strings.Count(got, "!!!") != 2 || strings.Count(got, "xxx") != 2 {
		t.Errorf("got\n%swant a limit in the first and third second, an error in the second and third", got)
	}
}

// Lines keep to the width, and ASCII to its characters.
func TestChartWidth(t *testing.T) {
	for _, n := range []int{1, 2, 7, 60, 61, 3600, 86400} {
		for _, width := range []int{1, 20, 33, 80, 200} {
			f := seconds(n, map[int]bar{0: {5, 5, 5}, n - 1: {123456, 1, 1}})
			for _, ascii := range []bool{false, true} {
				got := f.Chart(ChartStyle{Width: width, Top: 123458, ASCII: ascii})
				for line := range strings.Lines(got) {
					if k := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); k > max(width, minWidth) {
						t.Fatalf("%d seconds, width %d: got a line of %d characters:\n%s", n, width, k, got)
					}
				}
				if ascii && strings.ContainsFunc(got, func(r rune) bool { return r > 126 }) {
					t.Fatalf("got other characters than ASCII:\n%s", got)
				}
				if strings.Count(got, "\n") != maxRows+2 {
					t.Fatalf("got\n%swant %d rows and the axis", got, maxRows)
				}
			}
		}
	}
}

func TestTop(t *testing.T) {
	r := &Result{Strategies: []Figures{*seconds(2, map[int]bar{1: {1, 2, 3}}), *seconds(2, map[int]bar{0: {4, 0, 0}})}}
	if got := r.Top(); got != 6 {
		t.Errorf("got %v, want the 6 of the busiest second", got)
	}
}

func TestSpell(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "250ms": 250 * ms, "32.5s": 32500 * ms, "5m": 5 * time.Minute, "1m5s": 65 * sec, "1h": time.Hour, "1h30m": 90 * time.Minute,
	} {
		if got := strict.Duration(d); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
