// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// units in which rates are written, the shortest first.
var units = []struct {
	name  string
	scale float64
}{{"s", 1}, {"min", 60}, {"h", 3600}}

// rateText writes units per second by the unit that suits.
func rateText(perSecond float64) string {
	for _, unit := range units {
		if n := perSecond * unit.scale; n >= 0.1 || unit.name == "h" {
			return strconv.FormatFloat(round(n, 3), 'f', -1, 64) + "/" + unit.name
		}
	}
	return "0/s"
}

// lineRate is a rate for the policy file: rounded down, so that it is no more
// than what was seen.
func lineRate(perSecond float64) string {
	for _, unit := range units {
		if n := perSecond * unit.scale; n >= 1 || unit.name == "h" {
			digits := math.Pow(10, math.Floor(math.Log10(n))-1)
			return strconv.FormatFloat(round(math.Floor(n/digits+1e-9)*digits, 2), 'f', -1, 64) + "/" + unit.name
		}
	}
	return "1/h"
}

// round keeps so many significant digits.
func round(x float64, digits int) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, float64(digits)-1-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// budgetText is what a lane's budget allows, in short.
func budgetText(l *laneView) string {
	text := rateText(l.BaseRate)
	if l.BaseRate == 0 {
		text = "no rate"
	}
	if l.Burst > 1 {
		text += fmt.Sprintf(", burst %g", l.Burst)
	}
	if l.Window != nil {
		text += fmt.Sprintf(", window of %d", l.Window.Limit)
	}
	if l.Concurrency > 0 {
		text += fmt.Sprintf(", %d at once", l.Concurrency)
	}
	return text
}

// seconds writes a time for people.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// span writes the length of a window as the policy file does.
func span(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	case d%time.Minute == 0:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	}
	return strconv.Itoa(int(d/time.Second)) + "s"
}

func plural(n uint64) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func plurals(n int) string {
	if n == 1 {
		return ""
	}
	return "es"
}

func isAre[N int | uint64](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
