// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// writer makes header blocks with every representation that HPACK has, at
// random, which an ordinary encoder does not.
type writer struct {
	rand  *rand.Rand
	table table
	limit uint32
}

func (w *writer) block() (b []byte) {
	for range max(0, w.rand.IntN(12)-9) {
		size := uint32(w.rand.IntN(int(w.limit) + 1))
		if w.rand.IntN(3) == 0 {
			size = uint32(w.rand.IntN(200))
		}
		b = appendInteger(b, 0x20, 5, uint64(size))
		w.table.resize(size)
	}
	for range w.rand.IntN(7) {
		b = w.field(b)
	}
	return b
}

func (w *writer) field(b []byte) []byte {
	index := 1 + w.rand.IntN(staticLen+len(w.table.entries))
	if n := len(w.table.entries); n > 0 && w.rand.IntN(3) > 0 {
		index = staticLen + 1 + w.rand.IntN(n)
	}
	at := func() entry {
		if index <= staticLen {
			return static[index]
		}
		return *w.table.at(uint64(index - staticLen))
	}
	if w.rand.IntN(3) == 0 {
		return appendInteger(b, 0x80, 7, uint64(index))
	}
	pattern, bits := byte(0x40), uint8(6)
	if how := w.rand.IntN(6); how < 2 {
		pattern, bits = byte(how)<<4, 4
	}
	var name []byte
	if w.rand.IntN(2) == 0 {
		name = at().name
		b = appendInteger(b, pattern, bits, uint64(index))
	} else {
		name = bytes.Repeat([]byte("n"), w.rand.IntN(20))
		b = appendString(append(b, pattern), name, w.rand.IntN(2) == 0)
	}
	value := bytes.Repeat([]byte{'a' + byte(w.rand.IntN(3))}, w.rand.IntN(60))
	b = appendString(b, value, w.rand.IntN(2) == 0)
	if pattern == 0x40 {
		w.table.insert(entry{name: name, value: value})
	}
	return b
}

// play drives a translator with blocks that are forwarded, swallowed or held,
// and lets x/net's decoder read what comes out. It returns how many blocks went
// on as they came and how many did not.
func play(t *testing.T, w *writer, steps int, leave func() (swallow, hold bool)) (same, changed int) {
	t.Helper()
	tr := NewTranslator(w.limit)
	theirs := hpack.NewDecoder(DefaultTableSize, func(hpack.HeaderField) {})
	theirs.SetAllowedMaxDynamicTableSize(w.limit)
	ours := NewDecoder(w.limit) // as theirs, and tells the representation
	straight := true
	var held []*Block
	forward := func(b *Block) {
		out := tr.Append(nil, b)
		switch {
		case bytes.Equal(out, b.raw):
			same++
		case straight:
			t.Fatalf("% x became % x and nothing was left out", b.raw, out)
		default:
			changed++
		}
		got, err := ours.Decode(out)
		if err != nil {
			t.Fatalf("% x became % x: %v", b.raw, out, err)
		}
		if !slices.Equal(lines(got.Fields), lines(b.Fields)) {
			t.Fatalf("got %q\nwant %q", lines(got.Fields), lines(b.Fields))
		}
		for i, f := range got.Fields {
			want := b.Fields[i]
			if f.form != want.form && (want.form != indexed || want.static != 0 || f.form != incremental) {
				t.Fatalf("field %q: form %d became %d", f.Name, want.form, f.form)
			}
			if want.form != indexed && (f.huffValue != want.huffValue || !want.byName && f.huffName != want.huffName) {
				t.Fatalf("field %q: strings are written in another way", f.Name)
			}
		}
		// x/net takes one update a block and none behind it, so it gets them apart.
		rest := out
		for len(rest) > 0 && rest[0]&0xe0 == 0x20 {
			_, after, _ := readInteger(rest, 5)
			if _, err := theirs.DecodeFull(rest[:len(rest)-len(after)]); err != nil {
				t.Fatalf("x/net: update in % x: %v", out, err)
			}
			rest = after
		}
		fields, err := theirs.DecodeFull(rest)
		if err != nil || len(fields) != len(b.Fields) {
			t.Fatalf("x/net: %d fields, %v; want %d", len(fields), err, len(b.Fields))
		}
		for i, f := range fields {
			if want := b.Fields[i]; f.Name != string(want.Name) || f.Value != string(want.Value) || f.Sensitive != want.Never {
				t.Fatalf("x/net: %+v, want %q", f, lines(b.Fields[i:i+1]))
			}
		}
	}
	for range steps {
		b, err := tr.Read(w.block())
		if err != nil {
			t.Fatal(err)
		}
		swallow, hold := leave()
		switch {
		case hold:
			held = append(held, b.Clone())
			straight = false
		case swallow:
			tr.Swallow(&b)
			straight = false
		default:
			forward(&b)
		}
		for len(held) > 0 && w.rand.IntN(3) == 0 {
			i := w.rand.IntN(len(held))
			if swallow {
				tr.Swallow(held[i])
			} else {
				forward(held[i])
			}
			held = slices.Delete(held, i, i+1)
		}
	}
	return same, changed
}

func newWriter(seed uint64, limit uint32) *writer {
	return &writer{rand: rand.New(rand.NewPCG(seed, 2)), table: table{max: DefaultTableSize}, limit: limit}
}

func TestTranslatorLeavesBlocksAsTheyAre(t *testing.T) {
	w := newWriter(1, 8192)
	if same, changed := play(t, w, 2000, func() (bool, bool) { return false, false }); same != 2000 || changed != 0 {
		t.Errorf("%d the same, %d changed", same, changed)
	}
}

func TestTranslatorWithoutSomeBlocks(t *testing.T) {
	var same, changed int
	for seed := range uint64(200) {
		w := newWriter(seed, []uint32{4096, 16384}[seed%2])
		s, c := play(t, w, 100, func() (bool, bool) { return w.rand.IntN(10) == 0, seed%3 == 0 && w.rand.IntN(5) == 0 })
		same, changed = same+s, changed+c
	}
	if same < 1000 || changed < 1000 {
		t.Errorf("%d the same, %d changed: the test tests nothing", same, changed)
	}
}

// After what is missing was evicted, or the table emptied, blocks go on as they
// came again.
func TestTranslatorComesBackIntoStep(t *testing.T) {
	tr := NewTranslator(4096)
	insert := func(value string) []byte {
		return appendString(appendString([]byte{0x40}, []byte("n"), false), []byte(value), false)
	}
	missing, err := tr.Read(insert("missing"))
	if err != nil {
		t.Fatal(err)
	}
	tr.Swallow(&missing)
	for _, step := range []struct {
		name    string
		block   []byte
		changed bool
	}{
		{"a reference to the missing entry", []byte{0x80 | 62}, true},
		{"both tables are the same since", insert("next"), false},
		{"and references are", []byte{0x80 | 62, 0x80 | 63}, false},
	} {
		out, err := tr.Translate(nil, step.block)
		if err != nil || bytes.Equal(out, step.block) == step.changed {
			t.Errorf("%s: % x became % x, %v", step.name, step.block, out, err)
		}
	}
	missing, err = tr.Read(insert("missing"))
	if err != nil {
		t.Fatal(err)
	}
	tr.Swallow(&missing)
	again := insert("again")
	for i := range 200 {
		out, err := tr.Translate(nil, again)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("literal %d: % x became % x, %v", i, again, out, err)
		}
	}
	if tr.apart {
		t.Error("still apart after what was missing was evicted")
	}
}

// A block that changes no table may be left out without a trace.
func TestTranslatorWithoutPlainBlocks(t *testing.T) {
	tr := NewTranslator(4096)
	b, err := tr.Read([]byte{0x82, 0x84, 0x00, 0x01, 'a', 0x01, 'b'})
	if err != nil {
		t.Fatal(err)
	}
	tr.Swallow(&b)
	if tr.apart {
		t.Error("apart after a block without insertions was left out")
	}
}

// The update of a block that was left out reaches the decoder with the next
// one, the smallest and the last if there were several (RFC 7541 §4.2).
func TestTranslatorKeepsUpdates(t *testing.T) {
	tr := NewTranslator(4096)
	for _, sizes := range [][]uint64{{100}, {50, 70}, {60}} {
		var block []byte
		for _, n := range sizes {
			block = appendInteger(block, 0x20, 5, n)
		}
		b, err := tr.Read(append(block, 0x82))
		if err != nil {
			t.Fatal(err)
		}
		tr.Swallow(&b)
	}
	out, err := tr.Translate(nil, []byte{0x84})
	want := append(appendInteger(appendInteger(nil, 0x20, 5, 50), 0x20, 5, 60), 0x84)
	if err != nil || !bytes.Equal(out, want) {
		t.Errorf("got % x, %v; want % x", out, err, want)
	}
	if out, err := tr.Translate(nil, []byte{0x84}); err != nil || !bytes.Equal(out, []byte{0x84}) {
		t.Errorf("the next block: % x, %v", out, err)
	}
	// Also one that changes nothing: the decoder may wait for it.
	again := appendInteger(nil, 0x20, 5, 60)
	b, err := tr.Read(append(again, 0x82))
	if err != nil {
		t.Fatal(err)
	}
	tr.Swallow(&b)
	if out, err := tr.Translate(nil, []byte{0x84}); err != nil || !bytes.Equal(out, append(again, 0x84)) {
		t.Errorf("after an update to the same size: % x, %v", out, err)
	}
	if _, err := tr.Translate(nil, append(again, 0x84)); err != nil || len(tr.resize) > 0 {
		t.Errorf("%v, %d updates are pending after their block was written", err, len(tr.resize))
	}
}

// Updates of ever more held blocks take no more memory than a few.
func TestTranslatorFoldsUpdates(t *testing.T) {
	tr := NewTranslator(4096)
	var held []*Block
	for i := range 1000 {
		b, err := tr.Read(append(appendInteger(nil, 0x20, 5, uint64(2000+(i*7)%1000)), 0x82))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, b.Clone())
	}
	if len(tr.resize) > maxResizes {
		t.Errorf("%d updates are kept", len(tr.resize))
	}
	want := appendInteger(appendInteger(nil, 0x20, 5, 2000), 0x20, 5, 2000+(999*7)%1000)
	if out := tr.Append(nil, held[0]); !bytes.Equal(out, append(want, 0x82)) {
		t.Errorf("got % x, want % x", out, want)
	}
	if out := tr.Append(nil, held[500]); !bytes.Equal(out, []byte{0x82}) {
		t.Errorf("got % x", out)
	}
}

// A block that was read before the acknowledgement of smaller tables and goes
// after it has the update that the decoder waits for.
func TestTranslatorAfterAnAcknowledgement(t *testing.T) {
	tr := NewTranslator(4096)
	b, err := tr.Read([]byte{0x82})
	if err != nil {
		t.Fatal(err)
	}
	b = *b.Clone()
	tr.Acknowledge(128)
	if out := tr.Append(nil, &b); !bytes.Equal(out, append(appendInteger(nil, 0x20, 5, 128), 0x82)) {
		t.Errorf("got % x", out)
	}
	next := append(appendInteger(nil, 0x20, 5, 128), 0x84)
	if out, err := tr.Translate(nil, next); err != nil || !bytes.Equal(out, next) {
		t.Errorf("the next block: % x, %v", out, err)
	}
	if tr.apart {
		t.Error("still apart")
	}
	tr.Acknowledge(64)
	if tr.apart {
		t.Error("apart though no block waits")
	}
}

func FuzzTranslator(f *testing.F) {
	f.Add(uint64(1), uint64(0x0102030405060708))
	f.Add(uint64(7), uint64(0xf0f0))
	f.Fuzz(func(t *testing.T, seed, plan uint64) {
		w := newWriter(seed, uint32(4096+seed%5000))
		i := 0
		play(t, w, 64, func() (bool, bool) {
			i++
			return plan>>(i%64)&1 != 0, plan>>((i*7)%64)&3 == 3
		})
	})
}
