// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	begin := time.Now()
	p := start(t, how{in: g}, here.bin, "demo", "--json")
	p.mustSucceed(t, time.Minute)
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("got a demo of %v, want at most 40 s", took)
	}
	type phase struct {
		Requests, Limited int
		MaxInAnySecond    int `json:"max_in_any_second"`
	}
	var got struct {
		Without, With phase
		Stampede      struct {
			Workers             int
			RetryAfter          int `json:"retry_after_s"`
			SentDuringCooldown  int `json:"sent_during_cooldown"`
			FirstAfter          int `json:"first_after_ms"`
			MaxInAnySecondAfter int `json:"max_in_any_second_after"`
		}
	}
	dec := json.NewDecoder(strings.NewReader(p.stdout.String()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatalf("%v in\n%s", err, p.stdout.String())
	}
	t.Logf("%+v", got)
	if w := got.Without; w.Limited <= 20 || w.Requests < w.Limited+8 || w.MaxInAnySecond < 4 {
		t.Errorf("without egressd: got %+v, want more than 20 limited and at least 4 in a second", w)
	}
	if w := got.With; w.Limited != 0 || w.MaxInAnySecond > 2 || w.Requests < 5 || w.Requests > 11 {
		t.Errorf("with egressd: got %+v, want 5 to 11 requests, none limited, at most 2 in a second", w)
	}
	s := got.Stampede
	if s.Workers != 50 || s.RetryAfter != 3 || s.SentDuringCooldown != 0 || s.FirstAfter < 3000 {
		t.Errorf("stampede: got %+v, want 50 workers and nothing sent for 3 s", s)
	}
	// A ramp from half of the 20 per second, not a burst of fifty.
	if s.MaxInAnySecondAfter < 2 || s.MaxInAnySecondAfter > 21 {
		t.Errorf("stampede: got %d in a second after the cooldown, want a ramp of 2 to 21", s.MaxInAnySecondAfter)
	}
	if left := g.children(t); len(left) > 0 {
		t.Errorf("egressd demo left cgroups %v", left)
	}
	mustBeClean(t, g)
}
