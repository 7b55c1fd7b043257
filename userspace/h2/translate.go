// SPDX-License-Identifier: Apache-2.0

package h2

// Translator hands the header blocks of an encoder to a decoder that gets only
// some of them, or gets them in another order: a relay answers some requests
// itself and holds others back. The decoder then has another table than the
// encoder counts on. A block is written anew for the table that the decoder
// has: the same fields in the same order, with the same marks of never being
// indexed. A field that the encoder wrote as a literal stays one; a reference to
// an entry that the decoder lacks becomes a literal that enters its table. While
// the tables are the same, which they are until a block was left out and may be
// again, blocks go on byte for byte.
type Translator struct {
	in  *Decoder
	out table // what the decoder behind us has
	// next is the number of the block before which both tables were the same, if
	// they are in step: then that block can go as it is.
	next   uint64
	apart  bool
	open   uint64 // blocks that were read and neither appended nor swallowed
	resize []resize
}

// resize is a size update that was read and not yet written.
type resize struct {
	number uint64 // of the block that brought it
	size   uint32
}

// maxResizes bounds the updates kept while their blocks wait.
const maxResizes = 64

// NewTranslator returns a translator for a connection that is read from its
// start; limit is as in NewDecoder.
func NewTranslator(limit uint32) *Translator {
	return &Translator{in: NewDecoder(limit), out: table{max: DefaultTableSize}}
}

// SetLimit is Decoder.SetLimit.
func (t *Translator) SetLimit(limit uint32) { t.in.SetLimit(limit) }

// Read decodes the next header block of the encoder. Each one is then given,
// once, to Append or to Swallow, in any order; a block that waits beyond the
// next call of Read must be cloned. Errors are those of Decoder.Decode.
func (t *Translator) Read(block []byte) (Block, error) {
	b, err := t.in.Decode(block)
	if err != nil {
		return Block{}, err
	}
	t.open++
	for _, size := range b.updates {
		t.resize = append(t.resize, resize{b.number, size})
	}
	if len(t.resize) > maxResizes {
		t.fold()
	}
	return b, nil
}

// fold keeps of the pending updates what RFC 7541 §4.2 asks for: the smallest
// and the last.
func (t *Translator) fold() {
	if len(t.resize) <= 2 {
		return
	}
	least, last := t.resize[0], t.resize[len(t.resize)-1]
	for _, r := range t.resize {
		if r.size < least.size {
			least = r
		}
	}
	t.apart = true // which update came with which block is no longer known
	t.resize = append(t.resize[:0], least, last)
}

// Append appends the block b, written for the decoder that reads what was
// appended so far.
func (t *Translator) Append(dst []byte, b *Block) []byte {
	t.open--
	if !t.apart && b.number == t.next {
		t.next++
		t.follow(b)
		return append(dst, b.raw...)
	}
	t.apart = true
	dst = t.appendResizes(dst)
	for i := range b.Fields {
		dst = t.appendField(dst, &b.Fields[i])
	}
	t.rejoin()
	return dst
}

// Swallow says that b will not be appended.
func (t *Translator) Swallow(b *Block) {
	t.open--
	if !t.apart && b.number == t.next && b.plain() {
		t.next++ // it changed no table
		return
	}
	t.apart = true
	t.rejoin()
}

// Acknowledge says that an acknowledgement of SETTINGS goes to the decoder, in
// which that lowered the size of its table to size. It expects an update in the
// next block that it gets (RFC 7541 §4.2), and one that was read before the
// acknowledgement has none.
func (t *Translator) Acknowledge(size uint32) {
	if t.open > 0 && size < t.out.max {
		t.apart = true
		t.resize = append(t.resize, resize{t.in.count, size})
	}
}

// Translate appends the block that comes next, written for the decoder.
func (t *Translator) Translate(dst, block []byte) ([]byte, error) {
	b, err := t.Read(block)
	if err != nil {
		return dst, err
	}
	return t.Append(dst, &b), nil
}

// plain reports whether a block changes no table.
func (b *Block) plain() bool {
	for i := range b.Fields {
		if b.Fields[i].form == incremental {
			return false
		}
	}
	return len(b.updates) == 0
}

// follow makes the changes to the decoder's table that the block itself makes.
func (t *Translator) follow(b *Block) {
	for _, size := range b.updates {
		t.out.resize(size)
	}
	n := 0
	for n < len(t.resize) && t.resize[n].number <= b.number {
		n++
	}
	t.resize = append(t.resize[:0], t.resize[n:]...)
	for i := range b.Fields {
		if f := &b.Fields[i]; f.form == incremental {
			t.out.insert(entry{name: f.Name, value: f.Value})
		}
	}
}

// rejoin notes that both tables are the same again. A block that waits since is
// none of those that can go as they are: its number is lower.
func (t *Translator) rejoin() {
	if len(t.resize) == 0 && t.out.equal(&t.in.table) {
		t.apart, t.next = false, t.in.count
	}
}

// appendResizes appends all pending updates.
func (t *Translator) appendResizes(dst []byte) []byte {
	t.fold()
	for _, r := range t.resize {
		dst = appendInteger(dst, 0x20, 5, uint64(r.size))
		t.out.resize(r.size)
	}
	t.resize = t.resize[:0]
	return dst
}

// appendField appends a field for the decoder's table and changes that table as
// the decoder will.
func (t *Translator) appendField(dst []byte, f *Field) []byte {
	how, huffValue := f.form, f.huffValue
	if how == indexed {
		if f.static != 0 {
			return append(dst, 0x80|f.static)
		}
		if i := t.out.find(f.Name, f.Value); i != 0 {
			return appendInteger(dst, 0x80, 7, staticLen+i)
		}
		how, huffValue = incremental, shorter(f.Value)
	}
	pattern, bits := byte(0), uint8(4)
	switch how {
	case incremental:
		pattern, bits = 0x40, 6
	case never:
		pattern = 0x10
	}
	huffName := f.huffName
	name := uint64(0)
	if f.byName || f.form == indexed {
		huffName = shorter(f.Name)
		if name = uint64(f.static); name == 0 {
			name = uint64(staticNames[string(f.Name)])
		}
		if name == 0 {
			if i := t.out.findName(f.Name); i != 0 {
				name = staticLen + i
			}
		}
	}
	dst = appendInteger(dst, pattern, bits, name)
	if name == 0 {
		dst = appendString(dst, f.Name, huffName)
	}
	dst = appendString(dst, f.Value, huffValue)
	if how == incremental {
		t.out.insert(entry{name: f.Name, value: f.Value})
	}
	return dst
}
