// SPDX-License-Identifier: Apache-2.0

// Package diagnose answers why requests are refused with 429: it weighs what a
// daemon has counted, and what it counts while it is watched, against the
// causes that such refusals have.
//
// What was seen and what is made of it are apart: Watch fills a Snapshot by
// asking a daemon, and Analyse is a function of that alone. A finding says
// what was seen, in numbers, how sure it is, and what to do. That nothing was
// found is an answer, too.
//
// Nobody should act on a number that stands here for more than it is: shares
// of processes are of the requests that went by while the daemon could be listened
// to; where there were too many of them, of the connections that were there when
// somebody looked, about ten times a second, so that short ones are a sample.
package diagnose

import (
	"cmp"
	"slices"
	"time"
)

// Kind is a cause. The set is closed.
type Kind string

// Kinds, in the order in which findings stand.
const (
	PastEgressd    Kind = "past_egressd"   // what the policy names goes out without egressd
	Multiplication Kind = "multiplication" // several, each within the limit, and the sum is not
	OverBudget     Kind = "over_budget"    // one process alone is over a budget that only measures
	WrongLimit     Kind = "wrong_limit"    // what is sent is within the budget, and the origin allows less
	SharedExit     Kind = "shared_exit"    // limits come although little is sent
	RetryStorm     Kind = "retry_storm"    // refusals are answered with more requests
	WindowEdges    Kind = "window_edges"   // what is sent, or the limits, come at a fixed place of the clock's windows
	Escalation     Kind = "escalation"     // the origin asks for longer and longer
	ExitTrouble    Kind = "exit_trouble"   // the proxy refuses, not the origin
	Challenged     Kind = "challenged"     // the origin does not limit, it blocks
	OwnRefusals    Kind = "own_refusals"   // egressd itself refused
	BlindTLS       Kind = "blind_tls"      // answers that nobody sees
	Unmeasured     Kind = "unmeasured"     // no budget looks at it
)

// order is that of the differential diagnosis: what goes past egressd spoils all
// numbers, a 429 may be egressd's own, and rates have to be right before storms and
// bursts can be judged.
var order = []Kind{
	PastEgressd, OwnRefusals, Multiplication, OverBudget, WrongLimit, SharedExit, RetryStorm, WindowEdges, Escalation, ExitTrouble, Challenged,
	BlindTLS, Unmeasured,
}

// Certainty says how sure a finding is.
type Certainty string

// Certainties. Certain is what was counted; Likely is where the numbers fit
// one cause better than the others; Possible is where there are few of them.
const (
	Certain  Certainty = "certain"
	Likely   Certainty = "likely"
	Possible Certainty = "possible"
)

func doubt(f Finding) int {
	if f.Certainty == Possible {
		return 1
	}
	return 0
}

// Finding is one cause that was found.
type Finding struct {
	Kind        Kind      `json:"kind"`
	Certainty   Certainty `json:"certainty"`
	Destination string    `json:"destination,omitempty"` // label
	Exit        string    `json:"exit,omitempty"`
	Lane        string    `json:"lane,omitempty"`
	Saw         string    `json:"saw"` // with the numbers, for people
	// Numbers are those of the evidence, for programs.
	Numbers   map[string]float64 `json:"numbers"`
	Processes []Process          `json:"processes,omitempty"` // that take part
	Do        string             `json:"do"`
	// Policy is a policy file that has nothing but what would help; comments in
	// it say where the lines belong. Empty where no policy helps.
	Policy string `json:"policy,omitempty"`
}

// Process is a client process.
type Process struct {
	PID       uint32  `json:"pid"`
	Command   string  `json:"command"`
	PerSecond float64 `json:"requests_per_second,omitempty"` // estimated from its share
}

// Report is what came of it.
type Report struct {
	Watched  float64 `json:"watched_s"`
	Requests uint64  `json:"requests"`  // sent while watched
	TooMany  uint64  `json:"limited"`   // … and limited by their origins
	Refused  uint64  `json:"refused"`   // by egressd
	Since    float64 `json:"past_s"`    // how far back the counts below reach
	PastSent uint64  `json:"past_sent"` // answered in that time
	Past429s uint64  `json:"past_429s"` // … with 429
	// Labels are those under which the counts above have the destination of
	// interest, together with others.
	Labels   []string  `json:"counted_as,omitempty"`
	Findings []Finding `json:"findings"`
}

// Analyse makes a report of a snapshot. It reads no clock.
func Analyse(s *Snapshot) Report {
	a := newAnalysis(s)
	r := Report{Watched: a.span.Seconds(), Findings: []Finding{}}
	for i := range a.pairs {
		p := &a.pairs[i]
		r.Requests, r.TooMany, r.Refused = r.Requests+p.sent, r.TooMany+p.limited[limited], r.Refused+p.refusals()
	}
	r.Since = s.Past.To.Sub(s.Past.From).Seconds()
	for i := range s.Past.Pairs {
		p := &s.Past.Pairs[i]
		if !s.wants(p.Destination) && !a.wantsPair(p.Destination, p.Exit) {
			continue
		}
		r.PastSent, r.Past429s = r.PastSent+p.Requests, r.Past429s+p.TooMany
		if !s.wants(p.Destination) && !slices.Contains(r.Labels, p.Destination) {
			r.Labels = append(r.Labels, p.Destination)
		}
	}
	for _, find := range []func() []Finding{
		a.passing, a.quic, a.storms, a.bursts, a.escalation, a.multiplied, a.summed, a.regardless, a.limits, a.edges, a.refusals, a.blind, a.others,
		a.unmeasured,
	} {
		r.Findings = append(r.Findings, find()...)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			// What is only possible comes after all that is more.
			cmp.Compare(doubt(a), doubt(b)),
			cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)),
			cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Exit, b.Exit), cmp.Compare(a.Lane, b.Lane),
		)
	})
	return r
}

// perSecond is n in a time.
func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
