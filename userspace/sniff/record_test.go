// SPDX-License-Identifier: Apache-2.0

package sniff

import "testing"

func TestRecord(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		want int
	}{
		{"nothing", nil, 0},
		{"part of a header", []byte{23, 3, 3, 0}, 0},
		{"part of a body", []byte{23, 3, 3, 0, 2, 1}, 0},
		{"whole", []byte{23, 3, 3, 0, 2, 1, 2}, 7},
		{"whole, and more", []byte{22, 3, 1, 0, 1, 1, 2}, 6},
		{"empty", []byte{23, 3, 3, 0, 0}, 5},
		{"no type", []byte{24}, -1},
		{"no version", []byte{23, 2}, -1},
		{"too long", []byte{23, 3, 3, 0x48, 1}, -1},
	} {
		if got := Record(tc.b); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// Flights that are resumed count the next request as one.
func TestResumeFlights(t *testing.T) {
	data := append([]byte{23, 3, 3, 0, 200}, make([]byte, 200)...)
	f := ResumeFlights(true)
	for range 2 {
		if n, flight := f.Client(data); n != 0 || !flight {
			t.Fatalf("n = %d, flight = %v, want a flight", n, flight)
		}
		if n, flight := f.Client(data); n != len(data) || flight {
			t.Fatalf("n = %d, flight = %v after it was let go", n, flight)
		}
		f.Server()
	}
	if f.Count() != 3 {
		t.Errorf("%d flights", f.Count())
	}
}
