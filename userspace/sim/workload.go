// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/egressd/egressd/policy"
)

// Workload is a workload file, read: who sends, and to what. Immutable; safe
// for concurrent use.
type Workload struct {
	Name     string // of the file, or the name of a built-in one
	Summary  string
	Duration time.Duration // of virtual time in which requests are sent
	Runs     int           // repetitions, each with random numbers of its own
	// MeasureFrom leaves out of all figures what was sent before.
	MeasureFrom time.Duration
	Clients     Clients
	Strategies  []Strategy
	Origin      Origin
	// Policy is the one that the file brings along for strategies behind
	// egressd; nil if it has none.
	Policy *policy.Policy
}

// Clients are the workers. Each takes a job, sends its request, again and
// again if its strategy says so, thinks, and takes the next.
type Clients struct {
	Workers   int
	Processes int         // over which the workers are spread evenly
	Exits     int         // over which the workers are spread evenly
	Start     Dist        // when a worker begins
	Think     Dist        // between the end of a job and the next
	Rate      policy.Rate // that each process allows itself; zero: none
	Jobs      int         // of all workers together; 0: as many as there is time for
	Retry     Retry       // for strategies that do not say otherwise
	Host      string      // of the requests, and the rest of their URL
	Path      string
	Method    string
}

// Retry are the numbers of a strategy.
type Retry struct {
	Attempts int           // for a job, the first included
	Base     time.Duration // first back-off
	Cap      time.Duration // longest back-off
}

// Origin is what the requests go to.
type Origin struct {
	Limit   Limit
	Refusal Refusal
	Outages []Outage
	Latency Dist // from sending a request to its answer; it arrives half-way
	Headers Headers
}

// Limit is what the origin allows. What is set holds all together; the zero
// Limit allows everything.
type Limit struct {
	Rate        policy.Rate
	Burst       int // requests at once after idle; >= 1
	Window      Window
	Concurrency int
	Shared      bool // by all exits; else each has its own
	// CountRefused has a refused request spend as if it had been served.
	CountRefused bool
}

// Window is a number of requests in a time; the zero Window is no limit.
type Window struct {
	Limit int
	Per   time.Duration
	// Fixed windows follow upon each other, as the origin's clock has them;
	// else it is every stretch of time as long as Per.
	Fixed bool
}

// Refusal is the answer beyond the limit.
type Refusal struct {
	Status     int
	RetryAfter time.Duration // whole seconds; 0: no such field
	// Each round of refusals, those that come after the last Retry-After ran
	// out, asks for Factor times as much, up to Max. After Forget without a
	// refusal it begins anew; 0 never forgets. Factor 1 does not escalate.
	Factor float64
	Max    time.Duration
	Forget time.Duration
}

// Outage is a time in which the origin answers nothing but trouble.
type Outage struct {
	From, To   time.Duration
	Status     int           // 0: it cannot be connected to
	RetryAfter time.Duration // whole seconds; 0: no such field
}

// Headers says which fields of rate limits the origin sends.
type Headers string

// Kinds of headers. All but none go with every answer.
const (
	HeadersNone       Headers = "none"
	HeadersIETF       Headers = "ietf"        // RateLimit and RateLimit-Policy
	HeadersXRateLimit Headers = "x-ratelimit" // X-RateLimit-Limit, -Remaining and -Reset, in seconds from now
)
