// SPDX-License-Identifier: Apache-2.0

package tlsread

// SkimSparse is Skim for a caller who has not the bytes at hand but can look at
// some of them: peek copies those at a distance from where the reader stands,
// and reports whether all of b is there. Only records that are there whole are
// passed over, and at most most bytes. A record that is no application data is
// left to Next, whole, unless Skim has begun it: then the reader ends with
// ErrDoubt.
func (r *Reader) SkimSparse(peek func(at int, b []byte) bool, most int, want int64) (n int, plain int64) {
	// A look costs a system call or two, so one takes in the end of a record
	// and the header of the next.
	var look [1 + tagSize + recordHeader]byte
	end, header := look[:1+tagSize], look[1+tagSize:]
	known := false // header is that of the record at n
	for r.err == nil {
		before, begun := 0, false
		if r.skim.left == 0 {
			if !known && !peek(n, header) || !r.beginSkim(header, want-plain) {
				break
			}
			before, begun = recordHeader, true
		}
		known = false
		size := before + r.skim.left
		last := n + size - len(end)
		switch {
		case n+size > most || r.skim.left < len(end):
		case peek(last, look[:]):
			known = true
			fallthrough
		case peek(last, end):
			if !r.skim.judged && !r.keys.isData(end[0], r.skim.plain) {
				if !begun {
					r.err = ErrDoubt
				}
				break
			}
			r.skim.left = 0
			r.keys.seq++
			plain += int64(r.skim.plain)
			n += size
			continue
		}
		if begun {
			r.skim = skim{}
		}
		break
	}
	return n, plain
}
