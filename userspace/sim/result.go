// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// Result is what a simulation found. Its JSON is for programs.
type Result struct {
	Workload   string    `json:"workload"`
	Seed       uint64    `json:"seed"`
	Runs       int       `json:"runs"`
	DurationMS float64   `json:"duration_ms"`
	Strategies []Figures `json:"strategies"`
}

// Figures are those of one strategy: means of all runs, where there are
// several. Sent is OK, Limited and Errors together.
type Figures struct {
	Strategy string  `json:"strategy"`
	Sent     float64 `json:"sent"`     // requests that the origin was sent
	OK       float64 `json:"ok"`       // of those, served
	Limited  float64 `json:"limited"`  // of those, refused beyond the origin's limit
	Errors   float64 `json:"errors"`   // of those, met by an outage
	Refused  float64 `json:"refused"`  // that egressd refused itself and never sent
	Repeated float64 `json:"repeated"` // of those sent, that egressd repeated itself
	Done     float64 `json:"done"`     // jobs that succeeded
	Lost     float64 `json:"lost"`     // jobs that were given up
	// Wait is the time from when a job is ready to send until the request that
	// succeeded was sent: in back-off and in the gate. All runs together.
	Wait Waits `json:"wait_ms"`
	// The most requests sent in any second, and in any 100 ms.
	BusiestSecond float64 `json:"busiest_second"`
	Busiest100ms  float64 `json:"busiest_100ms"`
	// Alone is the share of runs in which no two requests were sent in the
	// same 100 ms.
	Alone  float64 `json:"alone"`
	Series Series  `json:"series"`
}

// Waits are in milliseconds.
type Waits struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Series has a number for each step of time from the beginning: requests by
// when they were sent, or refused by egressd.
type Series struct {
	StepMS  float64   `json:"step_ms"`
	OK      []float64 `json:"ok"`
	Limited []float64 `json:"limited"`
	Errors  []float64 `json:"errors"`
	Refused []float64 `json:"refused"`
}

// sum adds up the runs of a strategy.
type sum struct {
	f     Figures
	waits histogram
	runs  float64
}

func newSum(label string) *sum {
	return &sum{f: Figures{Strategy: label, Series: Series{StepMS: milliseconds(time.Second)}}}
}

func (s *sum) add(t *tally) {
	s.runs++
	f := &s.f
	f.Sent += float64(t.sent)
	f.OK += float64(t.kinds[served])
	f.Limited += float64(t.kinds[limited])
	f.Errors += float64(t.kinds[failed])
	f.Refused += float64(t.kinds[refused])
	f.Repeated += float64(t.repeated)
	f.Done += float64(t.done)
	f.Lost += float64(t.lost)
	f.BusiestSecond += float64(t.second.most)
	f.Busiest100ms += float64(t.tick.most)
	if t.tick.most <= 1 {
		f.Alone++
	}
	s.waits.merge(&t.waits)
	for k, to := range f.Series.all() {
		if *to == nil {
			*to = make([]float64, len(t.series[k]))
		}
		for i, n := range t.series[k] {
			(*to)[i] += float64(n)
		}
	}
}

// all are the series in the order of kinds.
func (s *Series) all() [numKinds]*[]float64 {
	return [numKinds]*[]float64{served: &s.OK, limited: &s.Limited, failed: &s.Errors, refused: &s.Refused}
}

// figures are the means.
func (s *sum) figures() Figures {
	f := &s.f
	for _, x := range []*float64{&f.Sent, &f.OK, &f.Limited, &f.Errors, &f.Refused, &f.Repeated, &f.Done, &f.Lost, &f.BusiestSecond, &f.Busiest100ms, &f.Alone} {
		*x /= s.runs
	}
	for _, series := range f.Series.all() {
		for i := range *series {
			(*series)[i] /= s.runs
		}
	}
	f.Wait = Waits{milliseconds(s.waits.quantile(0.5)), milliseconds(s.waits.quantile(0.99)), milliseconds(s.waits.max)}
	return *f
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
