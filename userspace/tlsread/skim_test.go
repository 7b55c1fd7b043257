// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"errors"
	"testing"
)

// established gives a sealer and a reader of each kind, behind the handshake.
func established(t testing.TB, do func(name string, s *sealer, r *Reader)) {
	t.Helper()
	for _, tt := range []struct {
		name    string
		version uint16
		suite   uint16
	}{
		{"1.3 AES 128", version13, 0x1301},
		{"1.3 AES 256", version13, 0x1302},
		{"1.3 ChaCha20", version13, 0x1303},
		{"1.2 AES 128", version12, 0xc02f},
		{"1.2 AES 256", version12, 0xc030},
		{"1.2 ChaCha20", version12, 0xcca8},
	} {
		s := newSealer(t, Server, tt.version, tt.suite)
		if tt.version == version13 {
			s.shaken()
		} else {
			s.shaken12()
		}
		r := s.mustReader(s.secrets())
		if got := read(r, s.out, 1<<20, 0); got.err != nil || got.left > 0 {
			t.Fatalf("%s: error %v, %d left", tt.name, got.err, got.left)
		}
		s.out = nil
		do(tt.name, s, r)
	}
}

// Records are passed over one by one, as long as all of each is wanted.
func TestSkimStopsInTime(t *testing.T) {
	established(t, func(name string, s *sealer, r *Reader) {
		s.data(5000).data(maxPlain).data(2000)
		first := len(newSealerLike(s).data(5000).out)
		for _, step := range []struct {
			want  int64
			n     int
			plain int64
		}{
			{0, 0, 0},
			{4999, 0, 0},
			{5000 + maxPlain - 1, first, 5000},
			{maxPlain - 1, 0, 0},
			{maxPlain, first + maxPlain - 5000, maxPlain},
		} {
			if n, plain := r.Skim(s.out, step.want); n != step.n || plain != step.plain || r.Skimming() {
				t.Fatalf("%s: Skim of %d = %d, %d, want %d, %d", name, step.want, n, plain, step.n, step.plain)
			}
			s.out = s.out[step.n:]
		}
		if got := read(r, s.out, 1<<20, 0); got.err != nil || !bytes.Equal(got.data, filled(2000)) {
			t.Errorf("%s: Next after it: error %v, %d bytes", name, got.err, len(got.data))
		}
	})
}

// newSealerLike writes records of the same lengths.
func newSealerLike(s *sealer) *sealer {
	other := *s
	keys := *s.keys
	other.keys, other.out = &keys, nil
	return &other
}

// A record may come in any pieces. Its plaintext counts at its end.
func TestSkimPieces(t *testing.T) {
	established(t, func(name string, s *sealer, r *Reader) {
		s.data(3000).data(1200).data(100)
		small := len(newSealerLike(s).data(100).out)
		long := s.out[:len(s.out)-small]
		var total int64
		for n := range recordHeader {
			if n, plain := r.Skim(long[:n], 4200); n != 0 || plain != 0 || r.Skimming() {
				t.Fatalf("%s: a header in parts: Skim = %d, %d", name, n, plain)
			}
		}
		rest := long
		for len(rest) > 0 {
			take := 1
			if !r.Skimming() {
				take = recordHeader
			}
			n, plain := r.Skim(rest[:take], 4200-total)
			if n != take {
				t.Fatalf("%s: %d left: Skim took %d of %d, error %v", name, len(rest), n, take, r.Err())
			}
			rest, total = rest[take:], total+plain
			if ended := total == 3000 || total == 4200; plain > 0 && (!ended || r.Skimming()) {
				t.Fatalf("%s: %d bytes counted, skimming %v", name, total, r.Skimming())
			}
		}
		if total != 4200 {
			t.Errorf("%s: %d bytes counted, want 4200", name, total)
		}
		if n, plain := r.Skim(s.out[len(long):], 1<<20); n != 0 || plain != 0 {
			t.Errorf("%s: a short record: Skim = %d, %d", name, n, plain)
		}
		if got := read(r, s.out[len(long):], 1<<20, 0); got.err != nil || !bytes.Equal(got.data, filled(100)) {
			t.Errorf("%s: Next after it: error %v, %d bytes", name, got.err, len(got.data))
		}
	})
}

// Next does not begin inside of a record.
func TestNextWhileSkimming(t *testing.T) {
	established(t, func(name string, s *sealer, r *Reader) {
		s.data(3000)
		if n, plain := r.Skim(s.out[:100], 3000); n != 100 || plain != 0 || !r.Skimming() {
			t.Fatalf("%s: Skim = %d, %d", name, n, plain)
		}
		if _, _, _, err := r.Next(nil); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: Next: %v", name, err)
		}
	})
}

// What is not application data, or padded, is left to Next where that can be
// seen, and is in doubt where it was begun.
func TestSkimDoubt(t *testing.T) {
	for _, suite := range handshakes13 {
		for _, tt := range []struct {
			name  string
			write func(s *sealer) *sealer
		}{
			{"a long ticket", func(s *sealer) *sealer { return s.record(Handshake, message(4, filled(2000)...)...) }},
			{"padding", func(s *sealer) *sealer { return s.padded(ApplicationData, 1, filled(2000)...) }},
			{"a padded key update", func(s *sealer) *sealer { return s.padded(Handshake, 2000, keyUpdate(0)...).useNext() }},
		} {
			for _, cut := range []int{recordHeader, 500, -tagSize - 1, -tagSize, -1, 0} {
				s := newSealer(t, Server, version13, suite).shaken()
				r := s.mustReader(s.secrets())
				read(r, s.out, 1<<20, 0)
				s.out = nil
				tt.write(s)
				end := len(s.out)
				if cut <= 0 {
					cut += end
				}
				n, plain := r.Skim(s.out[:cut], 1<<20)
				if seen := cut >= end-tagSize; seen {
					if n != 0 || plain != 0 || r.Skimming() || r.Err() != nil {
						t.Errorf("%s, cut at %d of %d: Skim = %d, %d, error %v", tt.name, cut, end, n, plain, r.Err())
					}
					s.data(2000)
					if got := read(r, s.out, 1<<20, 0); got.err != nil || !bytes.HasSuffix(got.data, filled(2000)) {
						t.Errorf("%s, cut at %d of %d: Next: error %v, %d bytes", tt.name, cut, end, got.err, len(got.data))
					}
					continue
				}
				if n != cut || plain != 0 || !r.Skimming() {
					t.Fatalf("%s, cut at %d of %d: Skim = %d, %d", tt.name, cut, end, n, plain)
				}
				if _, plain = r.Skim(s.out[cut:], 1<<20); plain != 0 || !errors.Is(r.Err(), ErrDoubt) || r.Skimming() {
					t.Errorf("%s, cut at %d of %d: %d bytes counted, error %v", tt.name, cut, end, plain, r.Err())
				}
				if _, _, _, err := r.Next(nil); !errors.Is(err, ErrDoubt) {
					t.Errorf("%s, cut at %d of %d: Next: %v", tt.name, cut, end, err)
				}
			}
		}
	}
}

// Nothing is skimmed where the length of a record does not tell that of its
// plaintext, or before there is application data.
func TestSkimWaits(t *testing.T) {
	s := newSealer(t, Server, version13, 0x1301).hello().useHandshake().record(Handshake, filled(3000)...)
	r := s.mustReader(s.secrets())
	for b := s.out; len(b) > 0; {
		if n, plain := r.Skim(b, 1<<20); n != 0 || plain != 0 {
			t.Fatalf("in the handshake: Skim = %d, %d", n, plain)
		}
		n, _, _, err := r.Next(b)
		if err != nil {
			break // the record is no message
		}
		b = b[n:]
	}

	s = newSealer(t, Server, version13, 0x1301).shaken().padded(ApplicationData, 9, filled(10)...)
	r = s.mustReader(s.secrets())
	read(r, s.out, 1<<20, 0)
	s.out = nil
	if n, _ := r.Skim(s.data(3000).out, 1<<20); n != 0 || r.Skimming() {
		t.Errorf("after padding was seen: Skim = %d", n)
	}

	s = newSealer(t, Server, version13, 0x1301).shaken().record(Handshake, 4, 0)
	r = s.mustReader(s.secrets())
	read(r, s.out, 1<<20, 0)
	s.out = nil
	if n, _ := r.Skim(s.data(3000).out, 1<<20); n != 0 || r.Skimming() {
		t.Errorf("inside of a message: Skim = %d", n)
	}

	s = newSealer(t, Server, version12, 0xc02f).shaken12()
	r = s.mustReader(s.secrets())
	read(r, s.out, 1<<20, 0)
	s.out = nil
	s.data(3000).out[1] = 2
	if n, _ := r.Skim(s.out, 1<<20); n != 0 || r.Skimming() {
		t.Errorf("another version: Skim = %d", n)
	}
	if _, _, _, err := r.Next(s.out); !errors.Is(err, ErrRecord) {
		t.Errorf("another version: Next: %v", err)
	}

	for _, body := range []int{maxBody13, maxBody13 + 1, 0xffff} {
		s = newSealer(t, Server, version13, 0x1301).shaken()
		r = s.mustReader(s.secrets())
		read(r, s.out, 1<<20, 0)
		s.out = nil
		if n, _ := r.Skim(s.raw(ApplicationData, make([]byte, body)...).out[:recordHeader], 1<<20); n != 0 || r.Skimming() {
			t.Errorf("a body of %d bytes: Skim = %d", body, n)
		}
	}
}

// Key updates between records that are passed over are not missed.
func TestSkimAcrossKeyUpdates(t *testing.T) {
	for _, suite := range handshakes13 {
		s := newSealer(t, Server, version13, suite).shaken()
		want := int64(0)
		for range 5 {
			s.data(9000).data(maxPlain).record(Handshake, keyUpdate(0)...).useNext()
			want += 9000 + maxPlain
		}
		s.data(10)
		for _, piece := range []int{1 << 20, 1, 4096} {
			got := read(s.mustReader(s.secrets()), s.out, piece, 1<<20)
			if got.err != nil || got.past != want || !bytes.Equal(got.data, filled(10)) {
				t.Errorf("suite %#04x, pieces of %d: error %v, %d bytes passed over, want %d", suite, piece, got.err, got.past, want)
			}
		}
	}
}
