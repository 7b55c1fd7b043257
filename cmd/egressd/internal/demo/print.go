// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/table"
)

// Print writes the result for people: before and after, second by second.
func (r *Result) Print(w io.Writer) error {
	columns := []table.Column{{Title: ""}, {Title: "WITHOUT", Right: true}, {Title: "WITH EGRESSD", Right: true}}
	rows := [][]string{
		{"requests that the origin received", strconv.Itoa(r.Without.Requests), strconv.Itoa(r.With.Requests)},
		{"  of them answered with 429", strconv.Itoa(r.Without.Limited), strconv.Itoa(r.With.Limited)},
		{"  most in any second", strconv.Itoa(r.Without.MaxInAnySecond), strconv.Itoa(r.With.MaxInAnySecond)},
	}
	if err := table.Write(w, 80, columns, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\nEach second at the origin (# served, ! answered with 429):\n\n%s", chart(r.without, r.with)); err != nil {
		return err
	}
	s := r.Stampede
	_, err := fmt.Fprintf(w, `
Stampede: %d workers, one 429 with Retry-After: %d
  sent during the cooldown   %d
  first request after        %.2f s
  most in any second after   %d
  second by second           %s
`, s.Workers, s.RetryAfter, s.SentDuringCooldown, float64(s.FirstAfter)/1e3, s.MaxInAnySecondAfter, ramp(r.after))
	return err
}

// chart draws one line for each second of two records.
func chart(left, right Record) string {
	a, b := seconds(left), seconds(right)
	width := len("without")
	for _, bar := range a {
		width = max(width, len(bar))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "   s  %-*s  with\n", width, "without")
	for i := range a {
		line := fmt.Sprintf("  %2d  %-*s  %s", i+1, width, a[i], b[i])
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// seconds draws one bar for each second of the loop. What came early within
// the tolerance belongs to the second for which it was sent.
func seconds(r Record) []string {
	bars := make([]string, loopSpan/time.Second)
	for _, e := range r {
		i := int((e.At + Tolerance) / time.Second)
		if i >= len(bars) {
			break
		}
		if e.Status == http.StatusTooManyRequests {
			bars[i] += "!"
		} else {
			bars[i] += "#"
		}
	}
	return bars
}

// ramp is the number of requests in each whole second of r.
func ramp(r Record) string {
	var counts []string
	for from, i := time.Duration(0), 0; i < len(r); from += time.Second {
		n := 0
		for ; i < len(r) && r[i].At-r[0].At < from+time.Second; i++ {
			n++
		}
		if i < len(r) { // the last second was cut short
			counts = append(counts, strconv.Itoa(n))
		}
	}
	return strings.Join(counts, ", ")
}
