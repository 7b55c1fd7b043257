// SPDX-License-Identifier: Apache-2.0

package h2

// form is the representation of a field (RFC 7541 §6).
type form uint8

const (
	indexed     form = iota // an index says name and value
	incremental             // a literal that enters the table
	without                 // a literal that does not
	never                   // a literal that never may, at no hop
)

// Field is one field of a header block. Name and Value are views into the
// block, the decoder's table or its memory.
type Field struct {
	Name, Value []byte

	// Never says that the field must never be put into a table (RFC 7541 §6.2.3).
	Never bool
	// Unknown says that the name was sent before a late decoder joined. Value is
	// known only if it was sent since.
	Unknown bool

	// How the field was written, so that it can be written so again.
	form      form
	byName    bool  // a literal whose name was an index
	static    uint8 // that index, of the field or of the name, if in the static table
	huffName  bool
	huffValue bool
}

// Block is a decoded header block. It is valid until the next call to the
// decoder, and as long as nobody changes the bytes that were decoded.
type Block struct {
	Fields []Field
	// Partial says that a field of the block is Unknown.
	Partial bool

	raw     []byte   // the block as it came
	updates []uint32 // size updates at its start
	number  uint64   // of the blocks that were decoded before it
}

// Clone returns a copy of the block that shares no memory with it.
func (b *Block) Clone() *Block {
	n := len(b.raw)
	for i := range b.Fields {
		n += len(b.Fields[i].Name) + len(b.Fields[i].Value)
	}
	memory := make([]byte, 0, n)
	keep := func(p []byte) []byte {
		start := len(memory)
		memory = append(memory, p...)
		return memory[start:len(memory):len(memory)]
	}
	c := &Block{Partial: b.Partial, number: b.number, raw: keep(b.raw)}
	c.updates = append(c.updates, b.updates...)
	c.Fields = make([]Field, len(b.Fields))
	for i, f := range b.Fields {
		f.Name, f.Value = keep(f.Name), keep(f.Value)
		c.Fields[i] = f
	}
	return c
}

// Decoder reads the header blocks of one direction of a connection, all of them
// and in order.
type Decoder struct {
	table   table
	limit   uint32 // that an update may set
	late    bool   // entries may exist that were inserted before
	fields  []Field
	updates []uint32
	memory  scratch
	list    uint32 // size of the list so far
	partial bool
	count   uint64 // blocks
	err     error
}

// NewDecoder returns a decoder for a connection that is read from its start.
// limit is the size in bytes up to which the encoder may set the size of the
// table, at least DefaultTableSize: what the receiver said in its SETTINGS or,
// for who cannot know that, what memory allows.
func NewDecoder(limit uint32) *Decoder {
	return &Decoder{table: table{max: DefaultTableSize}, limit: max(limit, DefaultTableSize)}
}

// LateJoin returns a decoder for a connection that is read from some block on.
// Indexes count from the newest entry, so what was inserted since resolves
// exactly; a reference to an older entry gives a field that is Unknown, and no
// error. The table is taken to be as large as limit until an update tells: an
// encoder never refers to what its table has lost.
func LateJoin(limit uint32) *Decoder {
	d := NewDecoder(limit)
	d.late, d.table.max = true, d.limit
	return d
}

// SetLimit changes the size that an update may set.
func (d *Decoder) SetLimit(limit uint32) { d.limit = limit }

// Late reports whether entries may exist that the decoder does not know.
func (d *Decoder) Late() bool { return d.late }

// Decode reads one complete header block. An error is an Error and stays: the
// table is no longer that of the encoder. Limits are MaxBlock, MaxFields,
// MaxField and MaxList.
//
// A size update is refused when it exceeds the limit, or when it does not come
// before all fields (RFC 7541 §4.2).
func (d *Decoder) Decode(block []byte) (Block, error) {
	if d.err == nil {
		d.err = d.decode(block)
	}
	if d.err != nil {
		return Block{}, d.err
	}
	d.count++
	return Block{Fields: d.fields, Partial: d.partial, raw: block, updates: d.updates, number: d.count - 1}, nil
}

func (d *Decoder) decode(p []byte) error {
	if len(p) > MaxBlock {
		return ErrBlockTooLong
	}
	clear(d.fields) // no reference keeps memory of an old table
	d.fields, d.updates, d.memory.b = d.fields[:0], d.updates[:0], reuse(d.memory.b)
	d.partial, d.list = false, 0
	for len(p) > 0 {
		var err error
		switch c := p[0]; {
		case c&0x80 != 0:
			p, err = d.indexed(p)
		case c&0xc0 == 0x40:
			p, err = d.literal(p, incremental, 6)
		case c&0xe0 == 0x20:
			p, err = d.update(p)
		case c&0xf0 == 0x10:
			p, err = d.literal(p, never, 4)
		default:
			p, err = d.literal(p, without, 4)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// update reads a size update (RFC 7541 §6.3).
func (d *Decoder) update(p []byte) ([]byte, error) {
	size, rest, err := readInteger(p, 5)
	if err != nil {
		return nil, err
	}
	if size > uint64(d.limit) || len(d.fields) > 0 {
		return nil, ErrSizeUpdate
	}
	d.table.resize(uint32(size))
	d.updates = append(d.updates, uint32(size))
	if size < 32 { // it holds no entry at all, so no unknown one either
		d.late = false
	}
	return rest, nil
}

// lookup returns the entry that an index names. It may be one of the table, and
// holds until the table changes.
func (d *Decoder) lookup(i uint64) (*entry, error) {
	if i == 0 {
		return nil, ErrIndex
	}
	if i <= staticLen {
		return &static[i], nil
	}
	if e := d.table.at(i - staticLen); e != nil {
		return e, nil
	}
	// No table within the limit has more entries than this.
	if d.late && i-staticLen <= uint64(d.limit/32) {
		return &unknownEntry, nil
	}
	return nil, ErrIndex
}

var unknownEntry = entry{unknown: true}

// indexed reads an indexed field (RFC 7541 §6.1).
func (d *Decoder) indexed(p []byte) ([]byte, error) {
	i, rest, err := readInteger(p, 7)
	if err != nil {
		return nil, err
	}
	e, err := d.lookup(i)
	if err != nil {
		return nil, err
	}
	f := Field{Name: e.name, Value: e.value, Unknown: e.unknown, form: indexed}
	if i <= staticLen {
		f.static = uint8(i)
	}
	return rest, d.add(f)
}

// literal reads a literal field whose index has a prefix of bits bits
// (RFC 7541 §6.2).
func (d *Decoder) literal(p []byte, how form, bits uint8) ([]byte, error) {
	i, p, err := readInteger(p, bits)
	if err != nil {
		return nil, err
	}
	f := Field{form: how, Never: how == never, byName: i > 0}
	if i > 0 {
		e, err := d.lookup(i)
		if err != nil {
			return nil, err
		}
		f.Name, f.Unknown = e.name, e.unknown
		if i <= staticLen {
			f.static = uint8(i)
		}
	} else if f.Name, f.huffName, p, err = readString(p, &d.memory); err != nil {
		return nil, err
	}
	if f.Value, f.huffValue, p, err = readString(p, &d.memory); err != nil {
		return nil, err
	}
	if err := d.add(f); err != nil {
		return nil, err
	}
	if how == incremental {
		d.table.insert(entry{f.Name, f.Value, f.Unknown})
	}
	return p, nil
}

// add appends a field to the list.
func (d *Decoder) add(f Field) error {
	size := len(f.Name) + len(f.Value)
	d.list += uint32(size) + 32
	switch {
	case len(d.fields) == MaxFields:
		return ErrTooManyFields
	case size > MaxField || d.list > MaxList:
		return ErrFieldTooLong
	}
	d.partial = d.partial || f.Unknown
	d.fields = append(d.fields, f)
	return nil
}
