// SPDX-License-Identifier: Apache-2.0

package tlsread

import "testing"

var benchSuites = []struct {
	name  string
	suite uint16
}{
	{"1.3-aes128", 0x1301},
	{"1.3-aes256", 0x1302},
	{"1.3-chacha20", 0x1303},
	{"1.2-aes128", 0xc02f},
	{"1.2-chacha20", 0xcca8},
}

// benchRecord makes a reader behind its handshake and the record that comes
// next, of n bytes of plaintext. Before each use of the record the number of
// records is set back, so that it is the next one again.
func benchRecord(b testing.TB, suite uint16, n int) (r *Reader, record []byte) {
	s := newSealer(b, Server, versionOf(suite), suite)
	if s.params.Version == version13 {
		s.shaken()
	} else {
		s.shaken12()
	}
	r = s.mustReader(s.secrets())
	if got := read(r, s.out, 1<<20, 0); got.err != nil {
		b.Fatal(got.err)
	}
	s.out = nil
	return r, s.data(n).out
}

func BenchmarkNext(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"300B", 300}, {"16KiB", maxPlain}} {
		for _, tt := range benchSuites {
			b.Run(size.name+"/"+tt.name, func(b *testing.B) {
				r, record := benchRecord(b, tt.suite, size.n)
				seq := r.keys.seq
				b.SetBytes(int64(size.n))
				b.ReportAllocs()
				for b.Loop() {
					r.keys.seq = seq
					if n, _, _, err := r.Next(record); n != len(record) {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkSkim(b *testing.B) {
	for _, tt := range benchSuites {
		b.Run("16KiB/"+tt.name, func(b *testing.B) {
			r, record := benchRecord(b, tt.suite, maxPlain)
			seq := r.keys.seq
			b.SetBytes(maxPlain)
			b.ReportAllocs()
			for b.Loop() {
				r.keys.seq = seq
				if n, _ := r.Skim(record, maxPlain); n != len(record) {
					b.Fatal(r.Err())
				}
			}
		})
	}
}

// Neither reading nor skimming allocates, once the buffer is there.
func TestAllocations(t *testing.T) {
	for _, tt := range benchSuites {
		r, record := benchRecord(t, tt.suite, maxPlain)
		seq := r.keys.seq
		next := func() {
			r.keys.seq = seq
			if n, _, _, err := r.Next(record); n != len(record) {
				t.Fatal(err)
			}
		}
		skim := func() {
			r.keys.seq = seq
			n, _ := r.Skim(record[:9000], maxPlain)
			if m, plain := r.Skim(record[n:], maxPlain); n+m != len(record) || plain != maxPlain {
				t.Fatal(r.Err())
			}
		}
		next()
		if n := testing.AllocsPerRun(100, next); n != 0 {
			t.Errorf("%s: Next allocates %v times", tt.name, n)
		}
		if n := testing.AllocsPerRun(100, skim); n != 0 {
			t.Errorf("%s: Skim allocates %v times", tt.name, n)
		}
		lent := make([]byte, 20<<10)
		r.Buffer(lent)
		r.keys.seq = seq
		if _, _, plain, err := r.Next(record); err != nil || &plain[0] != &lent[0] {
			t.Errorf("%s: the buffer that was lent is not used: %v", tt.name, err)
		}
	}
}
