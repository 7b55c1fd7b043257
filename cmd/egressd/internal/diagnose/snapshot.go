// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// Snapshot is all that an analysis looks at.
type Snapshot struct {
	Destination string // only that label, host or lane is of interest; "" for all
	Samples     []Sample
	Stream      Stream        // of single requests
	Clients     Clients       // seen while watched
	First, Last admin.Counts  // at the beginning of the watch and at its end
	Status      admin.Status  // at its end
	Past        admin.Exits   // of the last hour, or since the daemon started
	Minutes     []Minute      // of the last half hour, the oldest first
	Events      []admin.Event // that the daemon remembers, the oldest first
}

// Sample is the lanes at one instant of the watch.
type Sample struct {
	At    time.Time
	Lanes []admin.Lane
}

// Minute is what went through exits in a minute or so.
type Minute struct {
	From, To time.Time
	Pairs    []admin.Pair
}

// wants reports whether a label or host is of interest.
func (s *Snapshot) wants(names ...string) bool {
	if s.Destination == "" {
		return true
	}
	for _, name := range names {
		if name == s.Destination {
			return true
		}
	}
	return false
}

// minutes makes a series out of what went through exits in longer and longer
// times back from one instant, the shortest first.
func minutes(back []admin.Exits) []Minute {
	type key struct{ destination, exit string }
	var out []Minute
	before := map[key]admin.Pair{}
	for i, e := range back {
		if i > 0 && !e.From.Before(back[i-1].From) {
			continue // the daemon knows no more of the past
		}
		m := Minute{From: e.From, To: e.To}
		if len(out) > 0 {
			m.To = out[len(out)-1].From
		}
		for _, p := range e.Pairs {
			k := key{p.Destination, p.Exit}
			grew := p
			grew.Requests -= min(before[k].Requests, p.Requests)
			grew.TooMany -= min(before[k].TooMany, p.TooMany)
			before[k] = p
			m.Pairs = append(m.Pairs, grew)
		}
		out = append(out, m)
	}
	for i, k := 0, len(out)-1; i < k; i, k = i+1, k-1 {
		out[i], out[k] = out[k], out[i]
	}
	return out
}
