// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// lines gives fields as text.
func lines(fields []Field) (out []string) {
	for _, f := range fields {
		line := fmt.Sprintf("%s: %s", f.Name, f.Value)
		if f.Unknown {
			line = fmt.Sprintf("?: %s", f.Value)
		}
		if f.Never {
			line += " (never)"
		}
		out = append(out, line)
	}
	return out
}

func mustHex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestStaticTable(t *testing.T) {
	for i := 1; i <= staticLen; i++ {
		block := []byte{0x80 | byte(i)}
		want, err := hpack.NewDecoder(0, nil).DecodeFull(block)
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewDecoder(0).Decode(block)
		if err != nil || string(got.Fields[0].Name) != want[0].Name || string(got.Fields[0].Value) != want[0].Value {
			t.Errorf("index %d: %q, %v; want %+v", i, lines(got.Fields), err, want)
		}
		if first := staticNames[want[0].Name]; first > uint8(i) || string(static[first].name) != want[0].Name {
			t.Errorf("name %q: index %d", want[0].Name, first)
		}
	}
}

// The examples of RFC 7541 Appendix C.5 and C.6: responses, with a table of 256
// bytes so that entries are evicted, without and with Huffman coding.
func TestExamplesOfTheRFC(t *testing.T) {
	want := [][]string{
		{":status: 302", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 307", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{
			":status: 200", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:22 GMT", "location: https://www.example.com",
			"content-encoding: gzip", "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
		},
	}
	for name, blocks := range map[string][]string{
		"plain": {
			"4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
			"4803 3330 37c1 c0bf",
			"88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
		},
		"huffman": {
			"4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
			"4883 640e ffc1 c0bf",
			"88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(0)
			d.table.resize(256)
			for i, block := range blocks {
				got, err := d.Decode(mustHex(t, block))
				if err != nil || !slices.Equal(lines(got.Fields), want[i]) || got.Partial {
					t.Errorf("block %d: %q, %v; want %q", i, lines(got.Fields), err, want[i])
				}
			}
			if n := len(d.table.entries); n != 3 || d.table.size != 215 {
				t.Errorf("table of %d entries and %d bytes, want 3 and 215", n, d.table.size)
			}
		})
	}
}

func TestBlocksThatAreRefused(t *testing.T) {
	field := appendString(appendString([]byte{0}, []byte("a"), false), []byte("b"), false)
	insert := appendString(appendString([]byte{0x40}, []byte("name"), false), bytes.Repeat([]byte("v"), 4000), false)
	for _, tt := range []struct {
		name   string
		blocks [][]byte
		want   error
	}{
		{"nothing", [][]byte{{}}, nil},
		{"index 0", [][]byte{{0x80}}, ErrIndex},
		{"index beyond the tables", [][]byte{{0x80 | 62}}, ErrIndex},
		{"name beyond the tables", [][]byte{{0x7e, 1, 'a'}}, ErrIndex},
		{"last of the static table", [][]byte{{0x80 | 61}}, nil},
		{"only entry of the dynamic table", [][]byte{insert, {0x80 | 62}}, nil},
		{"evicted by the next", [][]byte{insert, insert, {0x80 | 63}}, ErrIndex},
		{"integer that ends early", [][]byte{{0xff}}, ErrTruncated},
		{"integer that goes on", [][]byte{{0xff, 0x80}}, ErrTruncated},
		{"integer of nine bytes more", [][]byte{append(append([]byte{0xff}, bytes.Repeat([]byte{0x80}, 8)...), 0)}, ErrIndex},
		{"integer without end", [][]byte{append(append([]byte{0xff}, bytes.Repeat([]byte{0x80}, 9)...), 0)}, ErrInteger},
		{"integer without end that ends early", [][]byte{append([]byte{0xff}, bytes.Repeat([]byte{0xff}, 9)...)}, ErrInteger},
		{"name without a value", [][]byte{{0, 1, 'a'}}, ErrTruncated},
		{"value that ends early", [][]byte{{0, 1, 'a', 2, 'b'}}, ErrTruncated},
		{"value of a huge length", [][]byte{{0, 1, 'a', 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}}, ErrTruncated},
		{"end of string in huffman code", [][]byte{{0, 1, 'a', 0x84, 0xff, 0xff, 0xff, 0xff}}, ErrHuffman},
		{"huffman padding with zeros", [][]byte{{0, 1, 'a', 0x81, 0x18}}, ErrHuffman},
		{"huffman padding of a byte", [][]byte{{0, 1, 'a', 0x82, 0x1f, 0xff}}, ErrHuffman},
		{"update to the limit", [][]byte{{0x3f, 0xe1, 0x1f}}, nil},
		{"update above the limit", [][]byte{{0x3f, 0xe2, 0x1f}}, ErrSizeUpdate},
		{"two updates", [][]byte{{0x20, 0x3f, 0xe1, 0x1f, 0x82}}, nil},
		{"update after a field", [][]byte{{0x82, 0x20}}, ErrSizeUpdate},
		{"all gone after an update", [][]byte{insert, {0x20, 0x80 | 62}}, ErrIndex},
		{"all that may be", [][]byte{bytes.Repeat(field, MaxFields)}, nil},
		{"one field too many", [][]byte{bytes.Repeat(field, MaxFields+1)}, ErrTooManyFields},
		{"long block", [][]byte{make([]byte, MaxBlock+1)}, ErrBlockTooLong},
		{"one byte that means much", [][]byte{insert, bytes.Repeat([]byte{0x80 | 62}, 64)}, nil},
		{"many bytes that mean much", [][]byte{insert, bytes.Repeat([]byte{0x80 | 62}, 65)}, ErrFieldTooLong},
		{"long field", [][]byte{appendString([]byte{0, 1, 'a'}, bytes.Repeat([]byte("0"), MaxField), true)}, ErrFieldTooLong},
		{"longest field", [][]byte{appendString([]byte{0, 1, 'a'}, bytes.Repeat([]byte("0"), MaxField-1), true)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDecoder(0)
			var err error
			for i, b := range tt.blocks {
				if err != nil {
					t.Fatalf("block %d: %v", i-1, err)
				}
				_, err = d.Decode(b)
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("err = %v, want %v", err, tt.want)
			}
			if _, again := d.Decode([]byte{0x82}); !errors.Is(again, tt.want) {
				t.Errorf("the next block: %v, want %v", again, tt.want)
			}
		})
	}
}

func TestLimitOfTheTable(t *testing.T) {
	d := NewDecoder(5000)
	if _, err := d.Decode(appendInteger(nil, 0x20, 5, 5000)); err != nil {
		t.Error(err)
	}
	d.SetLimit(100)
	if _, err := d.Decode(appendInteger(nil, 0x20, 5, 101)); !errors.Is(err, ErrSizeUpdate) {
		t.Errorf("err = %v, want %v", err, ErrSizeUpdate)
	}
}

// Fields stay what they are while the block that they are in changes the table.
func TestFieldsOutliveTheirEntries(t *testing.T) {
	d := NewDecoder(0)
	var block []byte
	var want []string
	for i := range 30 {
		value := bytes.Repeat([]byte{'a' + byte(i)}, 900)
		block = append(appendString(appendString(append(block, 0x40), []byte("n"), true), value, true), 0x80|62)
		want = append(want, "n: "+string(value), "n: "+string(value))
	}
	got, err := d.Decode(block)
	if err != nil || !slices.Equal(lines(got.Fields), want) {
		t.Fatalf("%v, %d fields", err, len(got.Fields))
	}
	kept := got.Clone()
	clear(block)
	if _, err := d.Decode(block[:0]); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(lines(kept.Fields), want) {
		t.Error("the clone changed with its block")
	}
}

func TestLateJoin(t *testing.T) {
	var buf bytes.Buffer
	e := hpack.NewEncoder(&buf)
	encode := func(fields ...string) []byte {
		buf.Reset()
		for i := 0; i < len(fields); i += 2 {
			if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
				t.Fatal(err)
			}
		}
		return slices.Clone(buf.Bytes())
	}
	encode(":status", "429", "retry-after", "17", "x-old", "1")

	d := LateJoin(64 << 10)
	for _, step := range []struct {
		name  string
		block []byte
		want  []string
		part  bool
	}{
		{"all from before", encode(":status", "429", "retry-after", "17", "x-old", "1"), []string{"?: ", "?: ", "?: "}, true},
		{"a status of the static table", encode(":status", "200", "x-new", "a"), []string{":status: 200", "x-new: a"}, false},
		{"old and new", encode(":status", "429", "x-new", "a", "retry-after", "17"), []string{"?: ", "x-new: a", "?: "}, true},
		{"an old name of a new entry", encode("x-old", "2"), []string{"?: 2"}, true},
		{"that entry", encode("x-old", "2", "retry-after", "18"), []string{"?: 2", "retry-after: 18"}, true},
		{"all that is known", encode("retry-after", "18", "x-new", "a"), []string{"retry-after: 18", "x-new: a"}, false},
	} {
		got, err := d.Decode(step.block)
		if err != nil || !slices.Equal(lines(got.Fields), step.want) || got.Partial != step.part {
			t.Errorf("%s: %q, partial %t, %v; want %q", step.name, lines(got.Fields), got.Partial, err, step.want)
		}
	}
	// Smaller than it was, the table may still have old entries.
	if got, err := d.Decode(append(appendInteger(nil, 0x20, 5, 300), 0x80|75)); err != nil || !got.Partial || !d.Late() {
		t.Errorf("after an update: %+v, %v; late = %t", got, err, d.Late())
	}
	if _, err := d.Decode([]byte{0x20}); err != nil || d.Late() {
		t.Errorf("%v; late = %t after the table was emptied", err, d.Late())
	}
	if _, err := d.Decode([]byte{0x80 | 62}); !errors.Is(err, ErrIndex) {
		t.Errorf("reference into the empty table: %v, want %v", err, ErrIndex)
	}
	d = LateJoin(4096)
	if _, err := d.Decode(appendInteger(nil, 0x80, 7, staticLen+128)); err != nil {
		t.Errorf("oldest entry of a full table: %v", err)
	}
	if _, err := d.Decode(appendInteger(nil, 0x80, 7, staticLen+129)); !errors.Is(err, ErrIndex) {
		t.Errorf("older than any entry: %v, want %v", err, ErrIndex)
	}
}

// A table that was made larger before the decoder joined keeps more than one of
// the size that it has at first.
func TestLateJoinOfALargeTable(t *testing.T) {
	d := LateJoin(64 << 10)
	insert := appendString(appendString([]byte{0x40}, []byte("n"), false), bytes.Repeat([]byte("v"), 1000), false)
	got, err := d.Decode(append(bytes.Repeat(insert, 20), appendInteger(nil, 0x80, 7, staticLen+20)...))
	if err != nil || got.Partial {
		t.Errorf("partial = %t, %v", got.Partial, err)
	}
}

// source makes random header blocks of x/net's encoder.
type source struct {
	rand *rand.Rand
	buf  bytes.Buffer
	enc  *hpack.Encoder
}

func newSource(seed uint64) *source {
	s := &source{rand: rand.New(rand.NewPCG(seed, 1))}
	s.enc = hpack.NewEncoder(&s.buf)
	s.enc.SetMaxDynamicTableSizeLimit(64 << 10)
	return s
}

// field returns one of some thousand fields, some of them often.
func (s *source) field() hpack.HeaderField {
	names := []string{":status", ":path", "cookie", "x-rate", "retry-after", "etag", "accept", "X-Odd", ""}
	n := s.rand.IntN(8)
	if s.rand.IntN(3) == 0 {
		n = s.rand.IntN(1000)
	}
	return hpack.HeaderField{
		Name:      names[s.rand.IntN(len(names))],
		Value:     strings.Repeat("v\x00", s.rand.IntN(30)) + fmt.Sprint(n),
		Sensitive: s.rand.IntN(10) == 0,
	}
}

func (s *source) block(tb testing.TB) ([]byte, []hpack.HeaderField) {
	tb.Helper()
	s.buf.Reset()
	if s.rand.IntN(10) == 0 {
		for range 1 + s.rand.IntN(2) {
			s.enc.SetMaxDynamicTableSize([]uint32{0, 40, 300, 4096, 20000}[s.rand.IntN(5)])
		}
	}
	var fields []hpack.HeaderField
	for range s.rand.IntN(8) {
		f := s.field()
		fields = append(fields, f)
		if err := s.enc.WriteField(f); err != nil {
			tb.Fatal(err)
		}
	}
	return slices.Clone(s.buf.Bytes()), fields
}

// Whenever a decoder joins, all that it knows is right, and what it does not
// know gets less.
func TestLateJoinIsNeverWrong(t *testing.T) {
	partial, known := 0, 0
	for seed := range uint64(60) {
		s := newSource(seed)
		for range s.rand.IntN(30) {
			s.block(t)
		}
		d := LateJoin(64 << 10)
		var last bool
		for i := range 400 {
			block, want := s.block(t)
			got, err := d.Decode(block)
			if err != nil {
				t.Fatalf("seed %d, block %d: %v", seed, i, err)
			}
			if len(got.Fields) != len(want) {
				t.Fatalf("seed %d, block %d: %d fields, want %d", seed, i, len(got.Fields), len(want))
			}
			last = got.Partial
			for k, f := range got.Fields {
				switch {
				case f.Unknown:
					partial++
					if len(f.Value) > 0 && string(f.Value) != want[k].Value || f.form != indexed && !f.byName {
						t.Fatalf("seed %d, block %d: %+v, want %+v", seed, i, f, want[k])
					}
				case string(f.Name) != want[k].Name || string(f.Value) != want[k].Value || f.Never != want[k].Sensitive:
					t.Fatalf("seed %d, block %d: %+v, want %+v", seed, i, f, want[k])
				default:
					known++
				}
			}
		}
		if last || d.late && len(d.table.entries) == 0 {
			t.Errorf("seed %d: still partial after 400 blocks", seed)
		}
	}
	if partial < 100 || known < 10000 {
		t.Errorf("%d unknown and %d known fields: the test tests nothing", partial, known)
	}
}

// compare holds what we decode against what x/net's decoder does.
func compare(t *testing.T, blocks [][]byte) {
	t.Helper()
	ours := NewDecoder(0)
	theirs := hpack.NewDecoder(DefaultTableSize, func(hpack.HeaderField) {})
	for i, b := range blocks {
		got, err := ours.Decode(b)
		want, wantErr := theirs.DecodeFull(b)
		switch {
		case errors.Is(err, ErrTooManyFields) || errors.Is(err, ErrFieldTooLong) || errors.Is(err, ErrBlockTooLong):
			return // limits that it does not have
		case errors.Is(err, ErrSizeUpdate):
			return // it takes an update after a field while its table is empty
		case wantErr != nil && strings.Contains(wantErr.Error(), "MUST occur at the beginning"):
			return // it takes no second update
		case (err == nil) != (wantErr == nil):
			t.Fatalf("block %d: %v, x/net: %v", i, err, wantErr)
		case err != nil:
			return
		}
		if len(got.Fields) != len(want) {
			t.Fatalf("block %d: %q, x/net: %q", i, lines(got.Fields), want)
		}
		for k, f := range got.Fields {
			if string(f.Name) != want[k].Name || string(f.Value) != want[k].Value || f.Never != want[k].Sensitive {
				t.Fatalf("block %d: %q, x/net: %q", i, lines(got.Fields), want)
			}
		}
	}
}

func TestDecoderAgainstAnother(t *testing.T) {
	for seed := range uint64(50) {
		s := newSource(seed)
		s.enc.SetMaxDynamicTableSizeLimit(DefaultTableSize)
		var blocks [][]byte
		for range 50 {
			b, _ := s.block(t)
			blocks = append(blocks, b)
		}
		compare(t, blocks)
		// And with a byte that is not what it was.
		i := s.rand.IntN(len(blocks))
		if len(blocks[i]) > 0 {
			blocks[i][s.rand.IntN(len(blocks[i]))] ^= 1 << s.rand.IntN(8)
		}
		compare(t, blocks)
	}
}

func FuzzDecoder(f *testing.F) {
	s := newSource(1)
	for range 10 {
		a, _ := s.block(f)
		b, _ := s.block(f)
		f.Add(slices.Concat(a, b), uint(len(a)), uint(3))
	}
	f.Add([]byte{0x40, 1, 'a', 1, 'b', 0xbe, 0x20, 0x3f, 0xe1, 0x1f, 0x10, 0x81, 0x1f, 0}, uint(5), uint(1))
	f.Add([]byte{0x7f, 0xff, 0x80, 0x80, 0x80, 0x80, 0x00, 0x84, 0xff, 0xff}, uint(0), uint(0))
	f.Fuzz(func(t *testing.T, data []byte, i, j uint) {
		a := int(i % uint(len(data)+1))
		c := a + int(j%uint(len(data)-a+1))
		blocks := [][]byte{data[:a], data[a:c], data[c:]}
		compare(t, blocks)
		late := LateJoin(64 << 10)
		for _, b := range blocks {
			got, err := late.Decode(b)
			if err != nil {
				return
			}
			if got.Partial != slices.ContainsFunc(got.Fields, func(f Field) bool { return f.Unknown }) {
				t.Fatalf("partial = %t: %q", got.Partial, lines(got.Fields))
			}
		}
	})
}
