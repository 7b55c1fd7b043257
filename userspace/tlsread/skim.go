// SPDX-License-Identifier: Apache-2.0

package tlsread

// minSkim is the length of a record's body from which on it pays to pass over
// it. A KeyUpdate that is not padded is far from it.
const minSkim = 1 << 10

// skim is a record that is being passed over.
type skim struct {
	left   int  // bytes of its body that are still to come
	plain  int  // bytes of its plaintext
	judged bool // it is known to be application data
}

// Skimming reports whether Skim has begun a record that did not end. Only Skim
// may go on from there.
func (r *Reader) Skimming() bool { return r.skim.left > 0 && r.err == nil }

// Skim passes over application data that nobody wants, without decrypting it:
// at most want bytes of plaintext, and only whole records of 1 KiB or more. B
// begins with a record or, while Skimming, inside one; it may end anywhere.
// The first n bytes of b are done with, and with them plain bytes of
// plaintext. The plaintext of a record counts when the record ends, and is part
// of want until then. Where Skim stops before a record that it does not pass
// over, or that is not known yet to be one, Next takes over.
//
// Skim does not find out whether a record is authentic; its receiver will. In
// TLS 1.3 it does find out whether it is application data without padding: its
// last encrypted byte tells (RFC 8446 §5.4). A record that is not is left to
// Next if b has that byte. If not, the record was begun in good faith, and the
// reader ends with ErrDoubt, which Err and Next tell.
func (r *Reader) Skim(b []byte, want int64) (n int, plain int64) {
	for r.err == nil {
		if r.skim.left == 0 {
			if !r.beginSkim(b[n:], want-plain) {
				break
			}
			n += recordHeader
		}
		took := r.passOver(b[n:])
		n += took
		if r.skim.left > 0 {
			break
		}
		plain += int64(r.skim.plain)
	}
	return n, plain
}

// beginSkim begins to pass over the record at the start of b, if it may.
func (r *Reader) beginSkim(b []byte, want int64) bool {
	// Who pads some records may pad any, and then its length tells nothing.
	if r.phase != traffic || r.messages.pending() || r.padded || len(b) < recordHeader || ContentType(b[0]) != ApplicationData {
		return false
	}
	length, err := r.header(b)
	if err != nil || length < minSkim {
		return false // Next tells the error
	}
	s := skim{left: length, plain: length - r.keys.overhead(), judged: !r.v13}
	if r.v13 {
		s.plain-- // the type
	}
	if s.plain > maxPlain || int64(s.plain) > want {
		return false
	}
	if at := recordHeader + s.plain; r.v13 && at < len(b) {
		if !r.keys.isData(b[at], s.plain) {
			return false
		}
		s.judged = true
	}
	r.skim = s
	return true
}

// passOver goes on with the record that was begun, and returns how many bytes
// of b belong to it.
func (r *Reader) passOver(b []byte) int {
	s := &r.skim
	n := min(s.left, len(b))
	if at := s.left - tagSize - 1; !s.judged && at < n {
		if !r.keys.isData(b[at], s.plain) {
			r.err = ErrDoubt
			return 0
		}
		s.judged = true
	}
	s.left -= n
	if s.left == 0 {
		r.keys.seq++
	}
	return n
}
