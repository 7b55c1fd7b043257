// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

// Stream is what single requests and answers told while they were listened to.
type Stream struct {
	// From and To are between when nothing was missed.
	From, To time.Time
	Events   []admin.Event // dispatches and what answers asked for, the oldest first
	Commands map[uint32]string
}

// story is what happened in one lane, request by request.
type story struct {
	from  time.Time
	span  time.Duration
	shots []shot
	asks  []ask
}

// shot is one request that was let go.
type shot struct {
	at     time.Time
	pid    uint32
	job    uint64
	repeat bool // of one that was limited, by whoever sent that
	early  bool // … before the delay was over that was asked for
	failed bool // it was limited
}

// ask is an answer that asks for less, or refuses to go on.
type ask struct {
	at    time.Time
	pid   uint32
	job   uint64
	kind  string
	delay time.Duration // 0: none was told
	told  float64       // per second; 0: none
}

// stories sorts a stream by lanes.
func stories(s *Stream) map[string]*story {
	all := map[string]*story{}
	of := func(lane string) *story {
		t := all[lane]
		if t == nil {
			t = &story{from: s.From, span: s.To.Sub(s.From)}
			all[lane] = t
		}
		return t
	}
	for _, e := range s.Events {
		if e.Time.Before(s.From) || e.Time.After(s.To) {
			continue
		}
		switch t := of(e.Lane); e.Kind {
		case string(policy.EventDispatch):
			t.shots = append(t.shots, shot{at: e.Time, pid: e.PID, job: e.Job})
		case string(policy.EventAsked):
			t.asks = append(t.asks, ask{
				at: e.Time, pid: e.PID, job: e.Job, kind: e.Detail,
				delay: time.Duration(e.Wait * float64(time.Second)), told: e.Told,
			})
		}
	}
	for _, t := range all {
		slices.SortStableFunc(t.shots, func(a, b shot) int { return a.at.Compare(b.at) })
		slices.SortStableFunc(t.asks, func(a, b ask) int { return a.at.Compare(b.at) })
		t.connect()
	}
	return all
}

// limits are the asks that are limits.
func (t *story) limits() (out []ask) {
	for _, a := range t.asks {
		if a.kind == limited {
			out = append(out, a)
		}
	}
	return out
}

// fewJobs is the number of different jobs below which a lane's clients are taken
// to ask for the same again and again, as those that poll do.
const fewJobs = 5

// soon is the part of the usual time between two requests for the same, within
// which the next one is a repetition.
const soon = 0.5

// connect finds the requests that are repetitions of limited ones: those of one
// process for the same that come after the limit and, where clients ask for the
// same in any case, sooner than they do after a success.
func (t *story) connect() {
	type key struct {
		pid uint32
		job uint64
	}
	type trail struct {
		last  int             // shot
		limit *ask            // since then
		usual []time.Duration // from a success to the next
	}
	type candidate struct {
		shot int
		of   *trail
		gap  time.Duration
		lim  *ask
	}
	trails, latest, jobs := map[key]*trail{}, map[uint32]int{}, map[uint64]bool{}
	var usual []time.Duration // of processes, whatever they asked for
	var candidates []candidate
	limits := t.limits()
	take := func(until time.Time) {
		for len(limits) > 0 && !limits[0].at.After(until) {
			l := &limits[0]
			limits = limits[1:]
			if j := trails[key{l.pid, l.job}]; l.job != 0 && j != nil {
				j.limit = l
				t.shots[j.last].failed = true
			} else if i, known := latest[l.pid]; known {
				t.shots[i].failed = true
			}
		}
	}
	for i := range t.shots {
		s := &t.shots[i]
		take(s.at)
		if before, known := latest[s.pid]; known && !t.shots[before].failed {
			usual = append(usual, s.at.Sub(t.shots[before].at))
		}
		latest[s.pid] = i
		if s.job == 0 {
			continue
		}
		jobs[s.job] = true
		j := trails[key{s.pid, s.job}]
		switch {
		case j == nil:
			j = &trail{}
			trails[key{s.pid, s.job}] = j
		case j.limit != nil:
			candidates = append(candidates, candidate{i, j, s.at.Sub(t.shots[j.last].at), j.limit})
		default:
			j.usual = append(j.usual, s.at.Sub(t.shots[j.last].at))
		}
		j.last, j.limit = i, nil
	}
	take(t.from.Add(t.span))
	for _, c := range candidates {
		habit := median(c.of.usual)
		if habit == 0 && len(jobs) < fewJobs {
			if habit = median(usual); habit == 0 {
				continue // nobody knows how often they would ask anyway
			}
		}
		if habit > 0 && float64(c.gap) > soon*float64(habit) {
			continue
		}
		s := &t.shots[c.shot]
		s.repeat = true
		s.early = c.lim.delay > 0 && s.at.Sub(c.lim.at) < c.lim.delay
	}
}

// median of times; 0 of none.
func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

// count tells how many requests there were, and how many of them were no
// repetitions.
func (t *story) count() (requests, jobs int) {
	for i := range t.shots {
		if !t.shots[i].repeat {
			jobs++
		}
	}
	return len(t.shots), jobs
}

// passed is the rate at which the origin let requests through. The time for which
// it had asked to send nothing is not counted: what it allows shows in the rest. It
// is not known where that is too little.
func (t *story) passed() (rate float64, known bool) {
	n := len(t.shots)
	n -= min(n, len(t.limits()))
	open := t.span - t.shut()
	if open < leastOpen || open < t.span/10 {
		return 0, false
	}
	return perSecond(uint64(n), open), true
}

// leastOpen is how long an origin must have been open for a rate to be drawn from
// it.
const leastOpen = 2 * time.Second

// shut is for how long the origin had asked to send nothing.
func (t *story) shut() (sum time.Duration) {
	end := t.from.Add(t.span)
	var until time.Time
	for _, a := range t.limits() {
		from, to := a.at, a.at.Add(a.delay)
		if from.Before(until) {
			from = until
		}
		if to.After(end) {
			to = end
		}
		if to.After(from) {
			sum += to.Sub(from)
			until = to
		}
	}
	return sum
}

// told is the lowest limit that answers stated, in requests per second; 0 if
// none did.
func (t *story) told() (least float64) {
	for _, a := range t.asks {
		if a.told > 0 && (least == 0 || a.told < least) {
			least = a.told
		}
	}
	return least
}

// shares are the processes of the story, by the jobs that they had: repetitions
// are a matter of their own.
func (t *story) shares() (all []share, total int) {
	at := map[uint32]int{}
	for i := range t.shots {
		s := &t.shots[i]
		if s.repeat || s.pid == 0 {
			continue
		}
		k, known := at[s.pid]
		if !known {
			k = len(all)
			at[s.pid] = k
			all = append(all, share{Process: Process{PID: s.pid}})
		}
		all[k].requests++
		total++
	}
	sortShares(all, total)
	return all, total
}
