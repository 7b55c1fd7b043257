// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/http"
	"time"
)

// Tolerance is the jitter of wire and scheduler that the origin allows for:
// two requests sent exactly one interval apart arrive a little closer
// together every second time. Its limit and the windows in which requests are
// counted are more lenient by this much.
const Tolerance = 50 * time.Millisecond

// Receipt is one request as the origin saw it.
type Receipt struct {
	At     time.Duration `json:"at"` // since the origin began to listen
	Status int           `json:"status"`
}

// Record is all that an origin received, in order.
type Record []Receipt

// Limited counts the requests that the origin answered with 429.
func (r Record) Limited() int {
	n := 0
	for _, e := range r {
		if e.Status == http.StatusTooManyRequests {
			n++
		}
	}
	return n
}

// MaxInAnySecond is the largest number of requests in any window of one
// second, less Tolerance, wherever it begins.
func (r Record) MaxInAnySecond() int {
	most, first := 0, 0
	for i, e := range r {
		for e.At-r[first].At >= time.Second-Tolerance {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// After returns what was received later than d.
func (r Record) After(d time.Duration) Record {
	for i, e := range r {
		if e.At > d {
			return r[i:]
		}
	}
	return nil
}

// Since returns r with times that count from the first request, and the parts
// of it within span.
func (r Record) Since(span time.Duration) Record {
	var out Record
	for _, e := range r {
		at := e.At - r[0].At
		if at >= span {
			break
		}
		out = append(out, Receipt{at, e.Status})
	}
	return out
}

// Phase is one run of the four workers.
type Phase struct {
	Requests       int `json:"requests"`
	Limited        int `json:"limited"`
	MaxInAnySecond int `json:"max_in_any_second"`
}

func (r Record) phase() Phase {
	return Phase{Requests: len(r), Limited: r.Limited(), MaxInAnySecond: r.MaxInAnySecond()}
}

// Stampede is the run of many workers through one cooldown.
type Stampede struct {
	Workers            int `json:"workers"`
	RetryAfter         int `json:"retry_after_s"`
	SentDuringCooldown int `json:"sent_during_cooldown"`
	// FirstAfter is when the first request came, counted from the 429, in
	// milliseconds.
	FirstAfter          int64 `json:"first_after_ms"`
	MaxInAnySecondAfter int   `json:"max_in_any_second_after"`
}

// stampede reads r around its one 429, and also returns what came after the
// cooldown. It reports false if there was no 429 or nothing came.
func (r Record) stampede(workers int, retryAfter time.Duration) (Stampede, Record, bool) {
	for i, e := range r {
		if e.Status != http.StatusTooManyRequests {
			continue
		}
		later := r[i+1:]
		after := later.After(e.At + retryAfter)
		if len(after) == 0 {
			return Stampede{}, nil, false
		}
		return Stampede{
			Workers:             workers,
			RetryAfter:          int(retryAfter / time.Second),
			SentDuringCooldown:  len(later) - len(after),
			FirstAfter:          (after[0].At - e.At).Milliseconds(),
			MaxInAnySecondAfter: after.MaxInAnySecond(),
		}, after, true
	}
	return Stampede{}, nil, false
}
