// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
)

// prefix begins all keys. Its number changes with what is kept under them or how
// the scripts read it, so that daemons of two versions never share a key whose
// meaning they differ about.
const prefix = "egressd:1:"

// Bounds of what a call may ask for. They keep the numbers of the scripts far
// from where doubles round.
const (
	maxInterval = 30 * 24 * time.Hour
	maxUntil    = 30 * 24 * time.Hour
	maxUnits    = 1 << 24
	maxBurst    = 1 << 32
	maxTerm     = time.Minute
	maxText     = 4096 // of a lane's or host's name
)

// keysOf are the keys of a lane, in the order in which scripts take them.
func keysOf(lane string) []string {
	key := prefix + "{" + escape(lane) + "}"
	return []string{key, key + ":hosts", key + ":grants", key + ":free"}
}

// escape writes what would end a hash tag or a word of a notice as %XX.
func escape(text string) string {
	if !strings.ContainsFunc(text, escaped) {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; escaped(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func escaped(c rune) bool { return c <= ' ' || c >= 0x7f || c == '{' || c == '}' || c == '%' }

// check refuses calls that no host of a fleet can mean.
func check(c *shared.Call) error {
	switch {
	case c.Kind < shared.Book || c.Kind > shared.Watch:
		return fmt.Errorf("fleet store: no call: %v", c.Kind)
	case c.Lane == "" || c.Host == "" || len(c.Lane) > maxText || len(c.Host) > maxText:
		return errors.New("fleet store: a call needs a lane and a host")
	case c.Limit.Interval < 0 || c.Limit.Interval > maxInterval:
		return fmt.Errorf("fleet store: interval %v is out of range", c.Limit.Interval)
	case math.IsNaN(c.Factor) || math.IsNaN(c.Step) || math.IsInf(c.Step, 0):
		return errors.New("fleet store: factor or step is no number")
	}
	return nil
}

// values are the arguments of a script, in the order of lua/lane.lua.
func (s *Store) values(c *shared.Call, id string, k known) []any {
	grant := ""
	if _, after, ok := strings.Cut(c.Grant, "-"); ok {
		grant = after
	}
	suspect := 0
	if k.suspect {
		suspect = 1
	}
	return []any{
		id, escape(c.Host), escape(c.Lane),
		int64(c.Limit.Interval), int64(min(max(c.Limit.Burst, 1), maxBurst)),
		int64(min(max(c.Units, 1), maxUnits)), micros(min(max(c.Term, 0), maxTerm)),
		micros(s.c.Learn), micros(shared.Youth), micros(shared.Alive), micros(keep), micros(shared.Ahead), micros(2 * s.c.Timeout),
		k.born, k.seq, k.clock, k.ahead, k.open, int64(k.epoch), k.slow, suspect,
		micros(min(max(c.Until, 0), maxUntil)), int64(min(c.Epoch, math.MaxInt32)), number(c.Factor), number(c.Step), grant,
	}
}

// micros is d in whole microseconds, rounded up: nothing ends early by it.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 17, 64) }

// reply is what a script answers, in the order of lua/answer.lua.
type reply struct {
	granted, after, number, epoch, open, interval, hosts, retry, young int64
	born, seq, clock, ahead, slow, stale, raised                       int64
}

var errReply = errors.New("an answer that no script of ours gives")

// read reads what a server answered. A server that is none of ours is an error,
// not a grant.
func (r *reply) read(words []int64) error {
	fields := []*int64{
		&r.granted, &r.after, &r.number, &r.epoch, &r.open, &r.interval, &r.hosts, &r.retry, &r.young,
		&r.born, &r.seq, &r.clock, &r.ahead, &r.slow, &r.stale, &r.raised,
	}
	if len(words) != len(fields) {
		return errReply
	}
	for i, word := range words {
		if word < 0 || word > 1<<60 {
			return errReply
		}
		*fields[i] = word
	}
	return nil
}

// answer is what the host is told.
func (r *reply) answer(c *shared.Call, id string) shared.Answer {
	a := shared.Answer{
		Granted: uint64(r.granted), After: span(r.after), Epoch: uint64(r.epoch), OpenAfter: span(r.open),
		Interval: time.Duration(r.interval), Hosts: int(min(r.hosts, math.MaxInt32)), Retry: span(r.retry), Young: r.young != 0,
	}
	if r.granted > 0 && (c.Kind == shared.Book || c.Kind == shared.Lease) {
		a.Grant = fmt.Sprintf("%016d-%s", r.number, id)
		if c.Kind == shared.Lease {
			a.Term = min(max(c.Term, 0), maxTerm)
		}
	}
	return a
}

// span is so many microseconds, cut to the range.
func span(micros int64) time.Duration {
	return time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond
}
