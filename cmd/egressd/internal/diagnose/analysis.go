// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// limited is the kind of verdict that a 429 is.
var limited = verdict.Limited.String()

// analysis is a snapshot, sorted by lanes and by pairs of destination and exit.
type analysis struct {
	*Snapshot
	span  time.Duration // of the watch
	lanes []laneView
	pairs []pairView
	// explained are the lanes whose limits have another cause than the value of
	// their budget.
	explained map[string]bool
	stories   map[string]*story
}

// lane is a lane as the daemon shows it.
type lane = admin.Lane

// laneView is one lane, and what happened in it.
type laneView struct {
	lane // as it was last seen
	// While it was watched.
	sent, limited uint64
	steps         []step
	story         *story // request by request; nil where it is not known
	// onsets are when limits began, as far as anybody remembers, the oldest
	// first.
	onsets []onset
}

// step is what happened between two samples.
type step struct {
	from, to      time.Time
	sent, limited uint64
}

// onset is the beginning of a limit.
type onset struct {
	at     time.Time
	closed time.Duration // for which the lane was closed then
	asked  bool          // … as the origin asked
}

// measures reports whether the lane holds nobody.
func (l *laneView) measures() bool { return l.Mode == "shadow" }

// name is the destination for people.
func (l *laneView) name() string {
	if l.Destination != "" {
		return l.Destination
	}
	return l.Label
}

// exit is the exit under which counts have the lane.
func (l *laneView) exit() string {
	if l.Exit == "" {
		return policy.AllExits
	}
	return l.Exit
}

// pairView is one destination label and exit while it was watched.
type pairView struct {
	destination, exit string
	sent              uint64
	limited, refused  map[string]uint64
	total             admin.PairCounts // since the daemon started
}

func (p *pairView) refusals() (n uint64) {
	for _, v := range p.refused {
		n += v
	}
	return n
}

func newAnalysis(s *Snapshot) *analysis {
	a := &analysis{Snapshot: s, explained: map[string]bool{}, stories: stories(&s.Stream)}
	a.comparePairs()
	if len(s.Samples) == 0 {
		return a
	}
	last := s.Samples[len(s.Samples)-1]
	a.span = last.At.Sub(s.Samples[0].At)
	at := map[string]int{}
	for _, l := range last.Lanes {
		if l.Budget == policy.ExitBudget || !s.wants(l.Label, l.Destination, l.Lane) {
			continue
		}
		at[l.Lane] = len(a.lanes)
		a.lanes = append(a.lanes, laneView{lane: l, story: a.stories[l.Lane]})
	}
	before := map[string]admin.Lane{}
	for i, sample := range s.Samples {
		for _, l := range sample.Lanes {
			k, wanted := at[l.Lane]
			if wanted && i > 0 {
				// A lane that was not there before has counted from zero.
				was := before[l.Lane]
				a.lanes[k].add(step{s.Samples[i-1].At, sample.At, since(l.Sent, was.Sent), since(l.Limited, was.Limited)})
			}
			before[l.Lane] = l
		}
	}
	a.remember(at)
	return a
}

// since is by how much a count grew. One that fell was begun anew.
func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (l *laneView) add(s step) {
	l.steps = append(l.steps, s)
	l.sent += s.sent
	l.limited += s.limited
}

// calm is how long there must have been no limit for the next to be a new one.
const calm = time.Second

// remember finds when limits began: by the daemon's events and, in lanes that
// only measure and so have none, by the watch.
func (a *analysis) remember(at map[string]int) {
	for _, e := range a.Events {
		k, wanted := at[e.Lane]
		if !wanted || e.Kind != string(policy.EventPenalty) && (e.Kind != string(policy.EventCooldown) || !strings.HasPrefix(e.Detail, limited)) {
			continue
		}
		l := &a.lanes[k]
		if n := len(l.onsets); n > 0 && e.Time.Sub(l.onsets[n-1].at) < calm {
			continue
		}
		l.onsets = append(l.onsets, onset{
			at: e.Time, closed: time.Duration(e.Wait * float64(time.Second)), asked: strings.HasSuffix(e.Detail, "as asked"),
		})
	}
	for i := range a.lanes {
		l := &a.lanes[i]
		if !l.measures() {
			continue
		}
		if l.story != nil {
			l.onsets = l.story.onsets()
			continue
		}
		var last time.Time
		for _, s := range l.steps {
			if s.limited == 0 {
				continue
			}
			if s.from.Sub(last) >= calm {
				l.onsets = append(l.onsets, onset{at: s.to})
			}
			last = s.to
		}
	}
}

// onsets are when limits began.
func (t *story) onsets() (all []onset) {
	var last time.Time
	for _, a := range t.limits() {
		if a.at.Sub(last) >= calm {
			all = append(all, onset{at: a.at})
		}
		last = a.at
	}
	return all
}

// recent are the onsets of the time that the counts of the past cover.
func (a *analysis) recent(l *laneView) int {
	n := 0
	for _, o := range l.onsets {
		if !o.at.Before(a.Past.From) {
			n++
		}
	}
	return n
}

// comparePairs finds what each pair counted while it was watched.
func (a *analysis) comparePairs() {
	type key struct{ destination, exit string }
	first := map[key]admin.PairCounts{}
	for _, p := range a.First.Pairs {
		first[key{p.Destination, p.Exit}] = p
	}
	for _, p := range a.Last.Pairs {
		if !a.wants(p.Destination) && !a.wantsPair(p.Destination, p.Exit) {
			continue
		}
		was := first[key{p.Destination, p.Exit}]
		a.pairs = append(a.pairs, pairView{
			destination: p.Destination, exit: p.Exit, total: p,
			sent:    since(p.Sent, was.Sent),
			limited: grew(p.Limited, was.Limited),
			refused: grew(p.Refused, was.Refused),
		})
	}
}

// wantsPair reports whether a lane of interest is counted under a pair, where
// the destination of interest is a host or a lane and no label.
func (a *analysis) wantsPair(label, exit string) bool {
	if len(a.Samples) == 0 {
		return false
	}
	return slices.ContainsFunc(a.Samples[len(a.Samples)-1].Lanes, func(l admin.Lane) bool {
		return l.Label == label && (l.Exit == "" || l.Exit == exit) && a.wants(l.Destination, l.Lane)
	})
}

func grew(now, before map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for name, n := range now {
		if d := since(n, before[name]); d > 0 {
			out[name] = d
		}
	}
	return out
}

// rate is what was sent per second while it was watched.
func (a *analysis) rate(l *laneView) float64 { return perSecond(l.sent, a.span) }

// jobs is rate without what only repeated limited requests.
func (a *analysis) jobs(l *laneView) float64 {
	if l.story == nil {
		return a.rate(l)
	}
	requests, jobs := l.story.count()
	if requests == 0 {
		return a.rate(l)
	}
	return a.rate(l) * float64(jobs) / float64(requests)
}

// shares are the processes that asked in a lane, who asked most first, and the
// number of requests that this is drawn from.
func (a *analysis) shares(l *laneView) (all []share, total int) {
	if l.story == nil {
		return a.Clients.of(l.Lane)
	}
	all, total = l.story.shares()
	for i := range all {
		p := &all[i].Process
		if p.Command = a.Stream.Commands[p.PID]; p.Command == "" {
			p.Command = a.Clients.command(p.PID)
		}
	}
	return all, total
}

// pastOf is what a pair counted in the past; the zero Pair if nothing.
func pastOf(pairs []admin.Pair, destination, exit string) (sum admin.Pair) {
	for _, p := range pairs {
		if p.Destination == destination && (p.Exit == exit || exit == policy.AllExits) {
			sum.Requests += p.Requests
			sum.TooMany += p.TooMany
		}
	}
	return sum
}
