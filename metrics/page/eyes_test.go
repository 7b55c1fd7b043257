// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	now := time.Unix(5000, 0)
	src := &scene{lanes: []Lane{{ID: "a", Base: 2, Burst: 1}, {ID: "b"}}}
	var e eyes
	look := func(after time.Duration, sent ...uint64) (text string) {
		now = now.Add(after)
		for i, n := range sent {
			src.lanes[i].Sent = n
		}
		for _, l := range e.see(src, now).lanes {
			text += fmt.Sprintf(" %s", l.ID)
			if l.known {
				text += fmt.Sprintf("=%g", l.perSecond)
			}
			if l.over {
				text += " over"
			}
		}
		return text
	}
	for i, tt := range []struct {
		after time.Duration
		sent  []uint64
		want  string
	}{
		{0, []uint64{100, 7}, " a b"}, // what was before is no rate
		{200 * time.Millisecond, []uint64{101, 7}, " a b"},
		{800 * time.Millisecond, []uint64{102, 7}, " a=2 b=0"},
		{time.Second, []uint64{104, 8}, " a=2 b=0.5"},
		{2 * time.Second, []uint64{144, 8}, " a=11 over b=0.25"},
		{time.Second, []uint64{0, 9}, " a=0 b=0.4"}, // a is another lane now
		{time.Second, []uint64{6, 9}, " a=1 b=0.3333333333333333"},
		{20 * time.Second, []uint64{50, 9}, " a b"}, // nobody looked
	} {
		if got := look(tt.after, tt.sent...); got != tt.want {
			t.Errorf("look %d: got%s, want%s", i, got, tt.want)
		}
	}
	// A lane that comes has sent nothing before, and one that goes is forgotten.
	src.lanes = append(src.lanes[:1], Lane{ID: "c"})
	if got := look(time.Second, 50, 3); got != " a=0 c=3" {
		t.Errorf("with a new lane: got%s", got)
	}
	if len(e.tracks) != 2 {
		t.Errorf("got %d lanes remembered, want 2", len(e.tracks))
	}
	// The span is ten looks, and what is remembered does not grow.
	for i := range 50 {
		got := look(time.Second, uint64(60+10*i), 3)
		if want := " a=10 over c=0"; i > 10 && got != want {
			t.Fatalf("second %d: got%s", i, got)
		}
	}
	if n := len(e.tracks["a"].sent); n != rateSpan+1 || len(e.steps) != n {
		t.Errorf("got %d counts for %d steps, want %d", n, len(e.steps), rateSpan+1)
	}
}

// Lanes of one name do not disturb the counts of others.
func TestRatesOfTwins(t *testing.T) {
	src := &scene{lanes: []Lane{{ID: "a"}, {ID: "a"}, {ID: "b"}}}
	var e eyes
	for i := range 30 {
		for j := range src.lanes {
			src.lanes[j].Sent = uint64(5 * i)
		}
		s := e.see(src, time.Unix(int64(100+i), 0))
		if b := s.lanes[2]; i > 0 && b.perSecond != 5 {
			t.Fatalf("look %d: got %g per second, want 5", i, b.perSecond)
		}
	}
}

func TestEventNumbers(t *testing.T) {
	ev := func(mono uint64) Event { return Event{Mono: mono, Kind: "cooldown"} }
	var e eyes
	for i, tt := range []struct {
		events []uint64
		want   string
	}{
		{nil, "[]"},
		{[]uint64{10, 11}, "[1 2]"},
		{[]uint64{10, 11}, "[1 2]"},
		{[]uint64{10, 11, 12}, "[1 2 3]"},
		{[]uint64{12, 12, 13}, "[3 4 5]"},   // two at one instant, and two that are gone
		{[]uint64{12, 13, 14}, "[4 5 6]"},   // which of the two is gone shows nowhere
		{[]uint64{20, 21, 22}, "[7 8 9]"},   // all are new
		{[]uint64{22}, "[9]"},               // what is remembered got shorter
		{[]uint64{22, 22, 22}, "[9 10 11]"}, // the same again
	} {
		var events []Event
		for _, mono := range tt.events {
			events = append(events, ev(mono))
		}
		ids := []uint64{}
		for _, s := range e.number(events) {
			ids = append(ids, s.id)
		}
		if got := fmt.Sprint(ids); got != tt.want {
			t.Errorf("look %d: got %s, want %s", i, got, tt.want)
		}
	}
}
