// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy/fleet"
)

// Options are what is played.
type Options struct {
	Hosts int
	// Known says that the hosts are configured with their number; else they have
	// it from the store alone.
	Known bool
	Limit fleet.Limit
	Loss  fleet.Loss // what is done without the store
	// Load is what all hosts want, as a multiple of the rate, arriving at random
	// instants at random hosts; 0: each host always has requests waiting.
	Load float64
	// Waves is the period of a load that comes in waves: Load in the first half of
	// each, nothing in the second. 0: it is even.
	Waves time.Duration
	// Arrive is the time over which hosts come, one after the other; 0: they are
	// all there from the beginning, within a tenth of a second.
	Arrive   time.Duration
	Latency  time.Duration // of a message one way: half of it fixed, half random with that mean
	Skew     time.Duration // clocks of hosts differ from true time by up to this
	Lost     float64       // share of messages that are lost, each way
	Cuts     []Cut
	Faults   []Fault
	Duration time.Duration
	Seed     uint64
}

// Cut is a time for which some hosts do not reach the store.
type Cut struct {
	At, For time.Duration
	Share   float64 // of the hosts, above 0, up to 1
}

// Memory is what a store that failed still knows.
type Memory uint8

// The kinds of memory.
const (
	Kept    Memory = iota // everything
	Empty                 // nothing
	Replica               // what it knew Lag before it failed
)

// Fault is a time for which the store is down.
type Fault struct {
	At, For time.Duration
	Memory  Memory
	Lag     time.Duration // of the replica
}

// Bounds of what can be played in reasonable time and memory.
const (
	MaxHosts    = 100_000
	MaxDuration = 24 * time.Hour
	maxSends    = 20_000_000
	maxBurst    = 1_000_000_000
	maxQueue    = 100 // requests that wait on one host
)

// Check says what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case o.Hosts < 1 || o.Hosts > MaxHosts:
		return fmt.Errorf("hosts: %d is not from 1 to %d", o.Hosts, MaxHosts)
	case o.Limit.Interval <= 0:
		return errors.New("rate: there is none")
	case o.Limit.Burst < 1 || o.Limit.Burst > maxBurst:
		return fmt.Errorf("burst: %d is not from 1 to %d", o.Limit.Burst, uint64(maxBurst))
	case o.Duration <= 0 || o.Duration > MaxDuration:
		return fmt.Errorf("duration: %v is not above zero and up to %v", o.Duration, MaxDuration)
	case o.Load < 0 || o.Load > 100:
		return fmt.Errorf("load: %v is not from 0 to 100 times the rate", o.Load)
	case o.Waves < 0 || o.Waves > 0 && o.Load == 0:
		return fmt.Errorf("waves: %v is below zero, or there is no load to come in waves", o.Waves)
	case !(o.Lost >= 0 && o.Lost <= 1):
		return fmt.Errorf("loss: %v is not from 0 to 100%%", o.Lost)
	case o.Latency < 0 || o.Latency > time.Minute:
		return fmt.Errorf("latency: %v is not from 0 to 1m", o.Latency)
	case o.Skew < 0 || o.Skew > MaxDuration:
		return fmt.Errorf("skew: %v is not from 0 to %v", o.Skew, MaxDuration)
	case o.Arrive < 0 || o.Arrive > o.Duration:
		return fmt.Errorf("arrive: %v is not from 0 to the duration", o.Arrive)
	}
	if n := o.Duration.Seconds() / o.Limit.Interval.Seconds(); n > maxSends {
		return fmt.Errorf("duration: %v has %.0f requests at this rate, more than %d; shorten one or lower the other", o.Duration, n, maxSends)
	}
	for _, c := range o.Cuts {
		if c.At < 0 || c.For <= 0 || c.At > o.Duration || !(c.Share > 0 && c.Share <= 1) {
			return fmt.Errorf("partition %s does not lie in the duration", c)
		}
	}
	end := time.Duration(0)
	for _, f := range o.Faults {
		if f.At < end || f.For < 0 || f.At > o.Duration || f.Lag < 0 || f.Lag > f.At {
			return fmt.Errorf("restart %s does not lie in the duration, or not after the one before, or its lag reaches back too far", f)
		}
		end = f.At + f.For
	}
	return nil
}

// String is the inverse of ParseCut.
func (c Cut) String() string { return fmt.Sprintf("%v+%v/%g%%", c.At, c.For, 100*c.Share) }

// ParseCut reads AT+FOR or AT+FOR/SHARE, as in 30s+10s/25%. Without a share all
// hosts are cut off.
func ParseCut(s string) (Cut, error) {
	fail := func() (Cut, error) {
		return Cut{}, fmt.Errorf("partition %q is not written AT+FOR/SHARE, as in 30s+10s/25%%", s)
	}
	times, share, some := strings.Cut(s, "/")
	at, dur, ok := parseSpan(times)
	if !ok || dur == 0 {
		return fail()
	}
	c := Cut{At: at, For: dur, Share: 1}
	if some {
		if c.Share, ok = ParseShare(share); !ok || c.Share == 0 {
			return fail()
		}
	}
	return c, nil
}

// String is the inverse of ParseFault.
func (f Fault) String() string {
	s := fmt.Sprintf("%v+%v", f.At, f.For)
	switch f.Memory {
	case Empty:
		return s + "/empty"
	case Replica:
		return fmt.Sprintf("%s/lag=%v", s, f.Lag)
	}
	return s + "/kept"
}

// ParseFault reads AT, AT+FOR or one of them with /kept, /empty or /lag=LAG
// after it, as in 30s+1s/lag=200ms. What is not said is that the store is down
// for a second and keeps its data.
func ParseFault(s string) (Fault, error) {
	fail := func() (Fault, error) {
		return Fault{}, fmt.Errorf("restart %q is not written AT+FOR/MEMORY, as in 30s+1s/empty, with kept, empty or lag=200ms", s)
	}
	times, memory, some := strings.Cut(s, "/")
	if !strings.Contains(times, "+") {
		times += "+1s"
	}
	at, dur, ok := parseSpan(times)
	if !ok {
		return fail()
	}
	f := Fault{At: at, For: dur}
	lag, isLag := strings.CutPrefix(memory, "lag=")
	switch {
	case !some || memory == "kept":
	case memory == "empty":
		f.Memory = Empty
	case isLag:
		var err error
		if f.Lag, err = time.ParseDuration(lag); err != nil || f.Lag < 0 {
			return fail()
		}
		f.Memory = Replica
	default:
		return fail()
	}
	return f, nil
}

func parseSpan(s string) (at, dur time.Duration, ok bool) {
	first, second, plus := strings.Cut(s, "+")
	at, err1 := time.ParseDuration(first)
	dur, err2 := time.ParseDuration(second)
	return at, dur, plus && err1 == nil && err2 == nil && at >= 0 && dur >= 0
}

// ParseShare reads a share of one: 25% or 0.25.
func ParseShare(s string) (float64, bool) {
	number, percent := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(number, 64)
	if percent {
		x /= 100
	}
	return x, err == nil && !math.IsNaN(x) && x >= 0 && x <= 1
}
