// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/policy/config/strict"
)

// Bounds of a workload.
const (
	maxDuration   = 24 * time.Hour
	maxWorkers    = 100_000
	maxRuns       = 100_000
	maxJobs       = 1_000_000_000
	maxAttempts   = 1000
	maxWindow     = 1_000_000
	maxStrategies = 50
	maxOutages    = 100
)

// minLatency keeps an answer from coming before its request.
const minLatency = 10 * time.Microsecond

// Load reads and parses the workload file at path. An error is either that of
// reading or of type config.Errors.
func Load(path string) (*Workload, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read workload: %w", err)
	}
	return Parse(path, text)
}

// Parse parses text as a workload file. name stands for the file in messages.
// An error is of type config.Errors; with one there is no workload.
func Parse(name string, text []byte) (*Workload, error) {
	r := &strict.Reader{File: name, Noun: "workload"}
	w := &Workload{Name: name, Runs: 1}
	if root, ok := document(r, text); ok {
		root.workload(w, text)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return w, nil
}

func (v value) workload(w *Workload, text []byte) {
	w.Clients = Clients{Workers: 1, Exits: 1, Retry: Retry{Attempts: 10, Base: time.Second, Cap: time.Minute},
		Host: "origin.example", Path: "/", Method: http.MethodGet}
	w.Origin = Origin{
		Limit:   Limit{Burst: 1},
		Refusal: Refusal{Status: http.StatusTooManyRequests, Factor: 1, Max: maxDuration},
		Latency: Dist{a: 20 * time.Millisecond},
		Headers: HeadersNone,
	}
	var strategies, from *value
	ok := v.mapping(
		field{"summary", func(v value) { w.Summary = strings.Join(strings.Fields(v.text("four workers, one limit")), " ") }},
		field{"duration", func(v value) { w.Duration = v.duration(time.Millisecond, maxDuration) }},
		field{"runs", func(v value) { w.Runs = v.integer(1, maxRuns) }},
		field{"measure_from", func(v value) { from, w.MeasureFrom = &v, v.duration(0, maxDuration) }},
		field{"clients", func(v value) { v.clients(&w.Clients) }},
		field{"strategies", func(v value) { strategies = &v }}, // once the clients are known
		field{"origin", func(v value) { v.origin(&w.Origin) }},
		field{"policy", func(v value) { w.Policy = v.policy(text) }},
	)
	if !ok {
		return
	}
	if w.Clients.Processes == 0 {
		w.Clients.Processes = w.Clients.Workers
	}
	if !v.Has("duration") {
		v.Reject("has no duration; write how much time to simulate, as in duration: 10s")
	}
	if from != nil && v.Has("duration") && w.MeasureFrom >= w.Duration {
		from.Reject("is not before the end of the %s that are simulated; write a shorter one", strict.Duration(w.Duration))
	}
	if strategies == nil {
		v.Reject("has no strategies; write at least one, as in strategies: [naive, egressd]")
		return
	}
	w.Strategies = strategies.strategies(w.Clients.Retry)
}

func (v value) clients(c *Clients) {
	var processes, exits *value
	v.mapping(
		field{"workers", func(v value) { c.Workers = v.integer(1, maxWorkers) }},
		field{"processes", func(v value) { processes, c.Processes = &v, v.integer(1, maxWorkers) }},
		field{"exits", func(v value) { exits, c.Exits = &v, v.integer(1, maxWorkers) }},
		field{"start", func(v value) { c.Start = v.dist(maxDuration) }},
		field{"think", func(v value) { c.Think = v.dist(maxDuration) }},
		field{"rate", func(v value) { c.Rate = v.rate() }},
		field{"jobs", func(v value) { c.Jobs = v.integer(1, maxJobs) }},
		field{"retry", func(v value) { v.retry(&c.Retry) }},
		field{"host", func(v value) {
			if c.Host = v.text("store.example.com"); strings.ContainsAny(c.Host, "/: ") || c.Host != strings.ToLower(c.Host) {
				v.Reject("must be a host name in lower case, without scheme and port%s", v.ButIs())
			}
		}},
		field{"path", func(v value) {
			if c.Path = v.text("/api/"); !strings.HasPrefix(c.Path, "/") {
				v.Reject("must begin with a slash%s", v.ButIs())
			}
		}},
		field{"method", func(v value) {
			c.Method = v.word(http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions)
		}},
	)
	for _, n := range []*value{processes, exits} {
		if n != nil && n.Raw() != "" && (c.Processes > c.Workers && n == processes || c.Exits > c.Workers && n == exits) {
			n.Reject("is more than there are workers (%d)", c.Workers)
		}
	}
}

func (v value) retry(r *Retry) {
	v.mapping(retryFields(r)...)
	v.checkRetry(r)
}

func retryFields(r *Retry) []field {
	return []field{
		{"attempts", func(v value) { r.Attempts = v.integer(1, maxAttempts) }},
		{"base", func(v value) { r.Base = v.duration(time.Millisecond, maxDuration) }},
		{"cap", func(v value) { r.Cap = v.duration(time.Millisecond, maxDuration) }},
	}
}

func (v value) checkRetry(r *Retry) {
	if r.Base > r.Cap {
		v.Reject("base (%s) is more than cap (%s); raise cap", strict.Duration(r.Base), strict.Duration(r.Cap))
	}
}

func (v value) strategies(retry Retry) []Strategy {
	var all []Strategy
	labels := map[string]bool{}
	v.list("[naive, egressd]", func(v value) {
		s, ok := v.strategy(retry)
		switch {
		case !ok:
		case labels[s.Label]:
			v.Reject("%q is there twice; remove one, or give it another label", strict.Clip(s.Label))
		case len(all) == maxStrategies:
			v.Reject("is one more than the %d that there may be; remove some", maxStrategies)
		default:
			labels[s.Label] = true
			all = append(all, s)
		}
	})
	return all
}

// strategy reads a name, or a mapping that says more.
func (v value) strategy(retry Retry) (Strategy, bool) {
	if !v.IsMapping() {
		s, err := ParseStrategy(v.Raw(), retry)
		if err != nil {
			v.Reject("%v", err)
		}
		return s, err == nil
	}
	name, label := "", ""
	v.mapping(append(retryFields(&retry),
		field{"strategy", func(v value) { name = v.text("fixed") }},
		field{"label", func(v value) { label = v.text("fixed, 5 s") }},
	)...)
	v.checkRetry(&retry)
	if name == "" {
		v.Reject("has no strategy; write which, as in strategy: fixed")
		return Strategy{}, false
	}
	s, err := ParseStrategy(name, retry)
	if err != nil {
		v.Reject("%v", err)
		return Strategy{}, false
	}
	if label != "" {
		s.Label = label
	}
	return s, true
}

func (v value) origin(o *Origin) {
	v.mapping(
		field{"limit", func(v value) { v.limit(&o.Limit) }},
		field{"refusal", func(v value) { v.refusal(&o.Refusal) }},
		field{"outages", func(v value) {
			v.list("[{from: 0s, to: 10s, answer: 503}]", func(v value) { o.Outages = append(o.Outages, v.outage()) })
			if len(o.Outages) > maxOutages {
				v.Reject("are more than %d; remove some", maxOutages)
			}
		}},
		field{"latency", func(v value) {
			o.Latency = v.dist(time.Hour)
			if max(o.Latency.a, o.Latency.b) < minLatency {
				v.Reject("must reach %s: an answer takes time%s", minLatency, v.ButIs())
			}
		}},
		field{"headers", func(v value) {
			o.Headers = Headers(v.word(string(HeadersNone), string(HeadersIETF), string(HeadersXRateLimit)))
		}},
	)
}

func (v value) limit(l *Limit) {
	v.mapping(
		field{"rate", func(v value) { l.Rate = v.rate() }},
		field{"burst", func(v value) { l.Burst = v.integer(1, maxWindow) }},
		field{"window", func(v value) { v.window(&l.Window) }},
		field{"concurrency", func(v value) { l.Concurrency = v.integer(1, maxWorkers) }},
		field{"per", func(v value) { l.Shared = v.word("exit", "all") == "all" }},
		field{"count_refused", func(v value) { l.CountRefused = v.word("true", "false") == "true" }},
	)
	if v.Has("burst") && !v.Has("rate") {
		v.Reject("has a burst without a rate; add rate, as in rate: 1/s")
	}
	if !v.Has("rate") && !v.Has("window") && !v.Has("concurrency") {
		v.Reject("allows everything; add rate, window or concurrency, or remove it")
	}
}

func (v value) window(w *Window) {
	v.mapping(
		field{"limit", func(v value) { w.Limit = v.integer(1, maxWindow) }},
		field{"per", func(v value) { w.Per = v.duration(time.Millisecond, maxDuration) }},
		field{"kind", func(v value) { w.Fixed = v.word("sliding", "fixed") == "fixed" }},
	)
	if !v.Has("limit") || !v.Has("per") {
		v.Reject("needs limit and per, as in {limit: 100, per: 1m, kind: fixed}")
	}
}

func (v value) refusal(r *Refusal) {
	var escalate *value
	v.mapping(
		field{"status", func(v value) { r.Status = v.integer(400, 599) }},
		field{"retry_after", func(v value) { r.RetryAfter = v.seconds(maxDuration) }},
		field{"escalate", func(v value) {
			escalate = &v
			v.mapping(
				field{"factor", func(v value) { r.Factor = v.number(1, 100) }},
				field{"max", func(v value) { r.Max = v.seconds(maxDuration) }},
				field{"forget", func(v value) { r.Forget = v.duration(0, maxDuration) }},
			)
		}},
	)
	if escalate != nil && r.RetryAfter == 0 {
		escalate.Reject("needs a retry_after to begin with, as in retry_after: 1s")
	}
	if r.Max < r.RetryAfter {
		escalate.Reject("max (%s) is less than retry_after (%s); raise it", strict.Duration(r.Max), strict.Duration(r.RetryAfter))
	}
}

func (v value) outage() Outage {
	o := Outage{Status: http.StatusServiceUnavailable}
	v.mapping(
		field{"from", func(v value) { o.From = v.duration(0, maxDuration) }},
		field{"to", func(v value) { o.To = v.duration(0, maxDuration) }},
		field{"answer", func(v value) {
			if v.Raw() == "error" {
				o.Status = 0
				return
			}
			o.Status = v.integer(400, 599)
		}},
		field{"retry_after", func(v value) { o.RetryAfter = v.seconds(maxDuration) }},
	)
	if o.To <= o.From {
		v.Reject("must end after it begins; write both, as in {from: 0s, to: 10s}")
	}
	if o.Status == 0 && o.RetryAfter > 0 {
		v.Reject("cannot ask for retry_after, as a connection that fails brings no answer; remove it")
	}
	return o
}

// policy reads the policy that the workload brings along. It is parsed by the
// parser of policy files, which gets the lines of the workload that it stands
// on, in their places, so that messages tell the right ones.
func (v value) policy(text []byte) *policy.Policy {
	first, last := v.Line(), v.Line()
	if !v.IsMapping() || v.IsFlow() {
		v.Reject("must be a policy file, indented, on the lines below")
		return nil
	}
	lines := strings.SplitAfter(string(text), "\n")
	indented := func(line string) bool { return strings.TrimLeft(line, " ") != line || strings.TrimSpace(line) == "" }
	if first > len(lines) || !indented(lines[first-1]) {
		v.Reject("must be a policy file, indented, on the lines below")
		return nil
	}
	for last < len(lines) && (indented(lines[last]) || strings.HasPrefix(lines[last], "#")) {
		last++
	}
	p, err := config.Parse(v.r.File, []byte(strings.Repeat("\n", first-1)+strings.Join(lines[first-1:last], "")))
	if errs := config.Errors(nil); errors.As(err, &errs) {
		for _, e := range errs {
			v.r.Add(e.Line, "policy: "+strings.TrimPrefix(e.Msg, "the policy "))
		}
		return nil
	}
	return p
}

// exitName is the name of an exit by its number, from 0.
func (w *Workload) exitName(n int) string {
	if w.Clients.Exits == 1 {
		return policy.DirectExit
	}
	return fmt.Sprintf("exit-%d", n+1)
}

// behind reports whether any of the strategies needs a policy.
func behind(all []Strategy) bool {
	return slices.ContainsFunc(all, func(s Strategy) bool { return s.Egressd })
}
