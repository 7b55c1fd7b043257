// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/egressd/egressd/policy/config/strict"
)

// Behaviour is what a client does when a request failed.
type Behaviour string

// Behaviours. With e = min(cap, base·2^n) after the failure number n, from 0,
// those that retry wait
//
//	fixed                     base
//	exponential-full-jitter   U(0, e)
//	exponential-equal-jitter  e/2 + U(0, e/2)
//	exponential-added-jitter  e + U(0, e/2)
//	decorrelated              min(cap, U(base, 3·last wait))
//	retry-after               Retry-After, or base where there is none
//
// and no wait but that of retry-after cares what the origin asked for.
const (
	Naive        Behaviour = "naive" // the job is lost
	Fixed        Behaviour = "fixed"
	FullJitter   Behaviour = "exponential-full-jitter"
	EqualJitter  Behaviour = "exponential-equal-jitter"
	AddedJitter  Behaviour = "exponential-added-jitter"
	Decorrelated Behaviour = "decorrelated"
	RetryAfter   Behaviour = "retry-after"
)

var behaviours = []Behaviour{Naive, Fixed, FullJitter, EqualJitter, AddedJitter, Decorrelated, RetryAfter}

// Suffix after the name of a behaviour puts its clients behind egressd.
const Suffix = "+egressd"

// egressd alone stands for naive clients behind it.
const egressd = "egressd"

// Strategy is a way to deal with an origin's limits, of which a simulation
// compares several.
type Strategy struct {
	Label     string // for people
	Behaviour Behaviour
	Egressd   bool // the clients are behind egressd
	Retry     Retry
}

// StrategyNames are all names that ParseStrategy knows.
func StrategyNames() []string {
	var names []string
	for _, b := range behaviours {
		names = append(names, string(b))
	}
	return append(names, egressd)
}

// ParseStrategy reads the name of a strategy: that of a behaviour, with Suffix
// or without, or egressd. Its label is the name; retry are its numbers.
func ParseStrategy(name string, retry Retry) (Strategy, error) {
	s := Strategy{Label: name, Retry: retry}
	word, behind := strings.CutSuffix(name, Suffix)
	s.Behaviour, s.Egressd = Behaviour(word), behind
	if name == egressd {
		s.Behaviour, s.Egressd = Naive, true
	}
	for _, b := range behaviours {
		if s.Behaviour == b {
			return s, nil
		}
	}
	return Strategy{}, fmt.Errorf("no strategy %q; there are %s, and all of them with %s", strict.Clip(name), strings.Join(StrategyNames(), ", "), Suffix)
}

// attempts is how often a job is tried.
func (s *Strategy) attempts() int {
	if s.Behaviour == Naive {
		return 1
	}
	return s.Retry.Attempts
}

// wait is how long a client waits after the failure number n, from 0. last is
// its wait before, 0 at first, and asked what the answer asked for, or 0.
func (s *Strategy) wait(n int, last, asked time.Duration, r *rand.Rand) time.Duration {
	base, most := s.Retry.Base, s.Retry.Cap
	e := time.Duration(math.Min(float64(most), math.Ldexp(float64(base), n)))
	switch s.Behaviour {
	case FullJitter:
		return between(0, e, r)
	case EqualJitter:
		return e/2 + between(0, e/2, r)
	case AddedJitter:
		return e + between(0, e/2, r)
	case Decorrelated:
		return min(most, between(base, 3*max(last, base), r))
	case RetryAfter:
		if asked > 0 {
			return asked
		}
	}
	return base
}
