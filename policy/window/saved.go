// SPDX-License-Identifier: Apache-2.0

package window

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Saved are the three words of a ledger cell that remember a window while the
// daemon is down. They say when units were charged, and so are understood
// under any other limit too; all zero stands for nothing charged.
//
// Of a sliding window they hold a histogram. Start is the instant at which the
// newest of its eight buckets begins, a multiple of 256 ns, with the buckets'
// width in the low byte. Cur has the units of the four newer buckets, Prev
// those of the four older ones, 16 bits for each, the newest in the lowest.
//
// Of a fixed window Start is the end. Prev is Per, with fixedTag above it and
// alignedTag if it was told by the origin. Cur has the units of the window in
// its lower half, those charged before in the upper.
//
// All ones in Cur stand for a full window. They are there while the others
// change, so that whoever finds words of which only some were written (the
// daemon may be killed at any time) sends too little, never too much.
type Saved struct{ Start, Prev, Cur *atomic.Uint64 }

const (
	buckets    = 8
	perBits    = 57
	alignedTag = 1 << perBits
	fixedTag   = 0x3f << (perBits + 1) // no count of units in an oldest bucket begins so
	full       = ^uint64(0)
)

// Bits of mantissa of a number of units in a histogram, of one in a fixed
// window, and of a bucket's width in units of 256 ns.
const (
	bucketBits = 10
	countBits  = 26
	widthBits  = 2
)

// pack writes v as a floating-point number of 6 bits of exponent above so many
// of mantissa: exactly if it has at most one bit more than the mantissa, and
// rounded up otherwise.
func pack(v uint64, mantissa int) uint64 {
	v = min(v, 1<<60)
	shift := max(bits.Len64(v)-mantissa-1, 0)
	return uint64(shift)<<mantissa + (v+1<<shift-1)>>shift
}

// unpack is the inverse of pack. Bits above the number are ignored, and what
// is too large to have been packed is 1<<60.
func unpack(code uint64, mantissa int) uint64 {
	one := uint64(1) << mantissa
	exponent := int(code>>mantissa) & 0x3f
	switch v := code & (one - 1); {
	case exponent == 0:
		return v
	case exponent-1 > 60-mantissa:
		return 1 << 60
	default:
		return min((v|one)<<(exponent-1), 1<<60)
	}
}

// bucketWidth is the width of buckets of which seven cover per, and its code.
func bucketWidth(per time.Duration) (width ledger.Time, code uint64) {
	parts := ledger.Time(buckets-1) << 8
	code = pack(uint64((ledger.Time(per)+parts-1)/parts), widthBits)
	return ledger.Time(unpack(code, widthBits)) << 8, code
}

// state is what saved words say.
type state struct {
	charges [buckets]charge // oldest first; some may be of no units
	per     time.Duration   // of a fixed window; 0 for another
	end     ledger.Time     // of the fixed window
	aligned bool
}

type charge struct {
	at    ledger.Time
	units uint64
}

// load reads the words. No charge is earlier than it was, and none later than
// now.
func (s Saved) load(now ledger.Time) (st state) {
	if s.Start == nil {
		return state{}
	}
	start, prev, cur := s.Start.Load(), s.Prev.Load(), s.Cur.Load()
	switch {
	case cur == full:
		st.charges[0] = charge{now, 1 << 60}
	case prev >= fixedTag:
		st.per = time.Duration(prev & (alignedTag - 1))
		st.aligned = prev&alignedTag != 0
		st.end = ledger.Time(start)
		st.charges[0] = charge{min(now, st.end.Add(-st.per).Add(-1)), unpack(cur>>32, countBits)}
		st.charges[1] = charge{min(now, st.end.Add(-1)), unpack(cur, countBits)}
	default:
		width := ledger.Time(min(unpack(start&0xff, widthBits), 1<<52)) << 8
		ended := ledger.Time(start &^ 0xff).Add(time.Duration(width)).Add(-1)
		for i := range buckets {
			word, shift := cur, 16*(i%4)
			if i >= 4 {
				word = prev
			}
			at := ended.Add(-time.Duration(i) * time.Duration(width))
			st.charges[buckets-1-i] = charge{min(now, at), unpack(word>>shift, bucketBits)}
		}
	}
	return st
}

// image is what a window knows of the words that it wrote.
type image struct {
	Saved
	width ledger.Time // of a bucket
	code  uint64      // of width
	start ledger.Time // of the newest bucket, or end of the fixed window
	cur   uint64      // word, without the newest bucket
	units uint64      // in the newest bucket, or in the fixed window
}

func newImage(s Saved, per time.Duration) image {
	if s.Start == nil {
		s = Saved{new(atomic.Uint64), new(atomic.Uint64), new(atomic.Uint64)}
	}
	i := image{Saved: s}
	i.width, i.code = bucketWidth(per)
	return i
}

// saveCharge brings the words up to date after a charge at now.
func (w *Window) saveCharge(now ledger.Time, units uint64) {
	i := &w.image
	switch {
	case w.config.Kind == Fixed && w.end == i.start:
		i.units += units
		i.Cur.Store(w.fixedWord())
	case w.config.Kind == Sliding && now.Sub(i.start) < time.Duration(i.width):
		i.units += units
		i.Cur.Store(i.cur | pack(i.units, bucketBits))
	default:
		w.save(now)
	}
}

// save writes all words anew.
func (w *Window) save(now ledger.Time) {
	i := &w.image
	i.Cur.Store(full)
	if w.config.Kind == Fixed {
		// Units count in the window even if it has ended.
		i.start, i.units = w.end, w.past.since(w.start())
		prev := fixedTag | uint64(w.config.Per)
		if w.aligned {
			prev |= alignedTag
		}
		i.Prev.Store(prev)
		i.Start.Store(uint64(w.end))
		i.Cur.Store(w.fixedWord())
		return
	}
	i.start = now - now%i.width
	var words [buckets / 4]uint64
	newer := uint64(0)
	for b := range buckets {
		since := w.past.since(i.start.Add(-time.Duration(b) * time.Duration(i.width)))
		words[b/4] |= pack(since-newer, bucketBits) << (16 * (b % 4))
		newer = since
		if b == 0 {
			i.units = since
		}
	}
	i.cur = words[0] &^ 0xffff
	i.Prev.Store(words[1])
	i.Start.Store(uint64(i.start) | i.code)
	i.Cur.Store(words[0])
}

// fixedWord is Saved.Cur of a fixed window.
func (w *Window) fixedWord() uint64 {
	in := w.image.units
	return pack(w.past.total()-in, countBits)<<32 | pack(in, countBits)
}
