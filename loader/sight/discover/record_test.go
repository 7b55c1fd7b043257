// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// made makes a record of 32-bit words and a text.
func made(kind uint32, misc uint16, text string, words ...uint32) []byte {
	b := make([]byte, recordHeader)
	for _, w := range words {
		b = le.AppendUint32(b, w)
	}
	b = append(b, text...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	le.PutUint32(b, kind)
	le.PutUint16(b[4:], misc)
	le.PutUint16(b[6:], uint16(len(b)))
	return b
}

// recordSamples are one record of each kind, and what it is.
func recordSamples() (list [][]byte, want []record) {
	add := func(b []byte, r record) { list, want = append(list, b), append(want, r) }
	mapped := []uint32{7, 8, 0x1000, 0, 0x2000, 0, 0, 0, 0xfd, 1, 1234, 0, 99, 0, 5, 2}
	add(made(unix.PERF_RECORD_MMAP2, 2, "/lib/libssl.so.3\x00", mapped...),
		record{kind: recordMap, pid: 7, tid: 8, addr: 0x1000, file: recordFile{0xfd, 1, 1234, 99}})
	add(made(unix.PERF_RECORD_COMM, miscCommExec, "curl\x00", 7, 7), record{kind: recordExec, pid: 7, tid: 7})
	add(made(unix.PERF_RECORD_COMM, 0, "renamed\x00", 7, 7), record{})
	add(made(unix.PERF_RECORD_FORK, 0, "", 9, 7, 9, 7, 0, 0), record{kind: recordFork, pid: 9, tid: 9, parent: 7})
	add(made(unix.PERF_RECORD_FORK, 0, "", 7, 7, 10, 7, 0, 0), record{pid: 7, tid: 10, parent: 7})
	add(made(unix.PERF_RECORD_EXIT, 0, "", 9, 7, 9, 7, 0, 0), record{kind: recordExit, pid: 9, tid: 9})
	add(made(unix.PERF_RECORD_LOST, 0, "", 0, 0, 12, 0), record{kind: recordLost, lost: 12})
	add(made(unix.PERF_RECORD_THROTTLE, 0, "", 1, 2, 3, 4), record{})
	add(made(unix.PERF_RECORD_MMAP2, 0, "", 7, 8), record{}) // too short for what it is
	add(made(unix.PERF_RECORD_EXIT, 0, ""), record{})
	anon := append(mapped[:10:10], 0, 0, 0, 0, 5, 2)
	add(made(unix.PERF_RECORD_MMAP2, 2, "//anon\x00", anon...), record{pid: 7, tid: 8, addr: 0x1000, file: recordFile{0xfd, 1, 0, 0}})
	return list, want
}

func TestParseRecord(t *testing.T) {
	list, want := recordSamples()
	for i, b := range list {
		got, n, err := parseRecord(b)
		if got != want[i] || n != len(b) || err != nil {
			t.Errorf("%x: got %+v, %d, %v; want %+v, %d", b, got, n, err, want[i], len(b))
		}
	}
	if _, n, err := parseRecord([]byte{9, 0, 0, 0, 0, 0, 7, 0}); n != 0 || err == nil {
		t.Errorf("a record shorter than its header: got %d, %v; want an error", n, err)
	}
}

// records reads b as it grows part by part.
func readRecords(parts ...[]byte) string {
	var out string
	var b []byte
	for _, part := range parts {
		b = append(b, part...)
		for {
			r, n, err := parseRecord(b)
			if err != nil {
				return out + err.Error()
			}
			if n == 0 {
				break
			}
			out += fmt.Sprintf("%+v\n", r)
			b = b[n:]
		}
	}
	return out + fmt.Sprintf("%d left", len(b))
}

func TestRecordsInAnyParts(t *testing.T) {
	list, _ := recordSamples()
	var b []byte
	for _, r := range list {
		b = append(b, r...)
	}
	want := readRecords(b)
	for cut := range b {
		if got := readRecords(b[:cut], b[cut:]); got != want {
			t.Fatalf("cut at %d: got %s, want %s", cut, got, want)
		}
	}
}

func FuzzRecords(f *testing.F) {
	list, _ := recordSamples()
	var b []byte
	for _, r := range list {
		f.Add(r, 9)
		b = append(b, r...)
	}
	f.Add(b, 100)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = max(0, min(cut, len(b)))
		if got, want := readRecords(b[:cut], b[cut:]), readRecords(b); got != want {
			t.Errorf("cut at %d: got %s, want %s", cut, got, want)
		}
	})
}

// A record that lies across the end of the buffer is put together, and what
// the kernel cannot have written counts as lost.
func TestDrain(t *testing.T) {
	list, want := recordSamples()
	const size = 256
	for start := uint64(0); start < size; start += 8 {
		r := &ring{page: new(unix.PerfEventMmapPage), data: make([]byte, size), buf: make([]byte, size)}
		at := 1<<40 + start
		r.page.Data_tail = at
		var got []record
		for i, b := range list {
			for j, c := range b {
				r.data[(at+uint64(j))%size] = c
			}
			at += uint64(len(b))
			r.page.Data_head = at
			r.drain(func(rec record) { got = append(got, rec) })
			if len(got) != i+1 || got[i] != want[i] || r.page.Data_tail != at {
				t.Fatalf("from %d: got %+v, want %+v", start, got, want[:i+1])
			}
		}
		r.drain(func(rec record) { t.Errorf("record %+v of an empty buffer", rec) })
	}
	for name, r := range map[string]*ring{
		"more than the buffer": {page: &unix.PerfEventMmapPage{Data_head: 2*size + 8}, data: make([]byte, size), buf: make([]byte, size)},
		"sizes of zero":        {page: &unix.PerfEventMmapPage{Data_head: 64}, data: make([]byte, size), buf: make([]byte, size)},
	} {
		var got []record
		r.drain(func(rec record) { got = append(got, rec) })
		if len(got) != 1 || got[0].kind != recordLost || r.page.Data_tail != r.page.Data_head {
			t.Errorf("%s: got %+v, want records lost once and the buffer empty", name, got)
		}
	}
}
