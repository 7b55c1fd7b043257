// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// window lets a reader look at what of b is there.
func window(b []byte) func(at int, to []byte) bool {
	return func(at int, to []byte) bool {
		if at < 0 || at+len(to) > len(b) {
			return false
		}
		copy(to, b[at:])
		return true
	}
}

// Records that are looked at here and there are passed over as those that are
// seen whole, wherever what is there ends.
func TestSkimSparse(t *testing.T) {
	established(t, func(name string, s *sealer, r *Reader) {
		rnd := rand.New(rand.NewPCG(1, 2))
		want := int64(0)
		for range 40 {
			n := 1100 + rnd.IntN(9000)
			s.data(n)
			want += int64(n)
		}
		long := len(s.out)
		s.data(300)
		begun, _ := r.Skim(s.out[:500], want) // in the middle of the first
		if begun != 500 {
			t.Fatalf("%s: Skim took %d of 500", name, begun)
		}
		var plain int64
		for at, there := begun, begun; at < long; {
			there = min(there+rnd.IntN(30_000), long)
			most := 1 + rnd.IntN(40_000)
			n, p := r.SkimSparse(window(s.out[at:there]), most, want-plain)
			if n > most || r.Err() != nil {
				t.Fatalf("%s: passed over %d of at most %d, error %v", name, n, most, r.Err())
			}
			at, plain = at+n, plain+p
		}
		if plain != want {
			t.Errorf("%s: %d bytes counted, want %d", name, plain, want)
		}
		if n, p := r.SkimSparse(window(s.out[long:]), 1<<20, 1<<20); n != 0 || p != 0 {
			t.Errorf("%s: a short record: SkimSparse = %d, %d", name, n, p)
		}
		if got := read(r, s.out[long:], 1<<20, 0); got.err != nil || !bytes.Equal(got.data, filled(300)) {
			t.Errorf("%s: Next after it: error %v, %d bytes", name, got.err, len(got.data))
		}
	})
}

// What is wanted only in part, and what is no application data, is left to Next
// as it is; a record that was begun in good faith is in doubt.
func TestSkimSparseStops(t *testing.T) {
	established(t, func(name string, s *sealer, r *Reader) {
		s.data(5000).data(maxPlain)
		first := len(newSealerLike(s).data(5000).out)
		n, plain := r.SkimSparse(window(s.out), 1<<20, 5000+maxPlain-1)
		if n != first || plain != 5000 || r.Skimming() {
			t.Fatalf("%s: SkimSparse = %d, %d, want %d, 5000", name, n, plain, first)
		}
		if got := read(r, s.out[first:], 1<<20, 0); got.err != nil || len(got.data) != maxPlain {
			t.Errorf("%s: Next after it: error %v, %d bytes", name, got.err, len(got.data))
		}
	})
	established(t, func(name string, s *sealer, r *Reader) {
		if !r.v13 {
			return
		}
		s.padded(ApplicationData, 100, filled(3000)...)
		if n, plain := r.SkimSparse(window(s.out), 1<<20, 1<<20); n != 0 || plain != 0 || r.Skimming() || r.Err() != nil {
			t.Errorf("%s: a padded record: SkimSparse = %d, %d, error %v", name, n, plain, r.Err())
		}
		if n, _ := r.Skim(s.out[:200], 1<<20); n != 200 {
			t.Fatalf("%s: Skim took %d of 200", name, n)
		}
		if n, _ := r.SkimSparse(window(s.out[200:]), 1<<20, 1<<20); n != 0 || !errors.Is(r.Err(), ErrDoubt) {
			t.Errorf("%s: a padded record that was begun: %d, error %v, want doubt", name, n, r.Err())
		}
	})
}
