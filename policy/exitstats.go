// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/egressd/egressd/policy/verdict"
)

// Outcome is what came of the bytes of an exchange. The set is closed.
type Outcome uint8

// Outcomes.
const (
	Useful   Outcome = iota // the answer was what was asked for: 2xx, and 304
	Redirect                // the other 3xx
	Blocked                 // the origin limited, or wants this exit not at all
	Failed                  // anything else, and no answer
	Unseen                  // the inside of a tunnel, which nobody here reads
	numOutcomes
)

// NumOutcomes is the number of outcomes, all below it.
const NumOutcomes = int(numOutcomes)

var outcomeNames = [numOutcomes]string{"useful", "redirect", "blocked", "failed", "unseen"}

// Outcomes are all of them.
func Outcomes() []Outcome {
	out := make([]Outcome, numOutcomes)
	for i := range out {
		out[i] = Outcome(i)
	}
	return out
}

// String is the outcome as metrics write it.
func (o Outcome) String() string {
	if o < numOutcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// OutcomeOf is the outcome of an exchange whose answer had a status and was
// judged to be of a kind; status 0 says that none came.
func OutcomeOf(kind verdict.Kind, status int) Outcome {
	switch kind {
	case verdict.Limited, verdict.Challenge:
		return Blocked // whatever the status pretends
	case verdict.ExitTrouble, verdict.Error:
		return Failed
	}
	switch {
	case status == 101:
		return Unseen
	case status == 304, 200 <= status && status < 300:
		return Useful
	case 300 <= status && status < 400:
		return Redirect
	case status == 403, status == 429, status == 451:
		return Blocked
	}
	return Failed
}

// Traffic is what exchanges of one outcome moved, in bytes as the provider of
// an exit meters them: of the TCP payload to and from the exit, with what it
// took to open a tunnel.
type Traffic struct{ Exchanges, Sent, Received uint64 }

// Bytes is the traffic both ways.
func (t Traffic) Bytes() uint64 { return t.Sent + t.Received }

// traffic is a Traffic that grows.
type traffic struct{ exchanges, sent, received atomic.Uint64 }

// AddExchange counts an exchange that ended, and the bytes of it that were not
// counted by AddPart.
func (t *Tally) AddExchange(o Outcome, sent, received uint64) {
	t.traffic[min(o, numOutcomes-1)].exchanges.Add(1)
	t.AddPart(o, sent, received)
}

// AddPart counts bytes of an exchange that goes on and whose outcome is known:
// that of a tunnel, or of a long answer.
func (t *Tally) AddPart(o Outcome, sent, received uint64) {
	u := &t.traffic[min(o, numOutcomes-1)]
	u.sent.Add(sent)
	u.received.Add(received)
}

// Traffic is what exchanges of an outcome moved.
func (t *Tally) Traffic(o Outcome) Traffic {
	u := &t.traffic[min(o, numOutcomes-1)]
	return Traffic{u.exchanges.Load(), u.sent.Load(), u.received.Load()}
}

// Code is the number of answers with a status code.
func (t *Tally) Code(code int) uint64 {
	if i := code - 100; i >= 0 && i < len(t.codes) {
		return t.codes[i].Load()
	}
	return 0
}

// Price is the price of 10^9 bytes through an exit, given by its label or
// identity; 0 where the policy tells none. Of exits that share an identity the
// one that has its name is asked first.
func (p *Policy) Price(exit string) float64 {
	name, _, _ := strings.Cut(exit, "/")
	price := 0.0
	for i := range p.Exits {
		switch e := &p.Exits[i]; {
		case e.Name == name && e.Price > 0:
			return e.Price
		case e.Identity() == name && price == 0:
			price = e.Price
		}
	}
	return price
}

// maxSessions bounds the ports and sessions of exits that counters tell apart.
const maxSessions = 1000

// exitLabels decides under which label an exit is counted. What a client
// chooses, a session or a port, has a label of its own for the first
// maxSessions of them, and keeps it; those that come later are counted
// together, as "E-017/other". The zero exitLabels is ready.
type exitLabels struct {
	// known has the sessions that have a label and, under the exit's own
	// name, the label for those that have none. Copied on each write.
	known atomic.Pointer[map[string]string]
	// missed is a set of hashes of what was counted together, so that each
	// counts as dropped about once.
	missed  [1 << 10]atomic.Uint64
	dropped atomic.Uint64
}

// of is the label of an exit. It allocates nothing but when an exit is new.
func (x *exitLabels) of(seed maphash.Seed, exit string) string {
	if strings.IndexByte(exit, '/') < 0 {
		return exit
	}
	for {
		old, known := x.load()
		if _, ok := known[exit]; ok {
			return exit
		}
		if len(known) >= maxSessions {
			return x.rest(seed, exit)
		}
		exit = strings.Clone(exit)
		if x.add(old, exit, exit) {
			return exit
		}
	}
}

// rest is the label under which what has none of its own is counted, and
// counts it as dropped. An exit without session or port is its own.
func (x *exitLabels) rest(seed maphash.Seed, exit string) string {
	name, _, told := strings.Cut(exit, "/")
	if !told {
		return exit
	}
	x.miss(maphash.String(seed, exit))
	for {
		old, known := x.load()
		if label, ok := known[name]; ok {
			return label
		}
		if len(known) >= maxTallies {
			return OtherLabel
		}
		if label := name + "/" + OtherLabel; x.add(old, strings.Clone(name), label) {
			return label
		}
	}
}

func (x *exitLabels) load() (p *map[string]string, known map[string]string) {
	if p = x.known.Load(); p != nil {
		known = *p
	}
	return p, known
}

// add adds to what old points at; false if that is no longer what is known.
func (x *exitLabels) add(old *map[string]string, key, label string) bool {
	next := map[string]string{key: label}
	if old != nil {
		maps.Copy(next, *old)
	}
	return x.known.CompareAndSwap(old, &next)
}

// miss counts a hash that was not seen before.
func (x *exitLabels) miss(h uint64) {
	word, bit := &x.missed[h>>6%uint64(len(x.missed))], uint64(1)<<(h&63)
	if word.Load()&bit == 0 && word.Or(bit)&bit == 0 {
		x.dropped.Add(1)
	}
}
