// SPDX-License-Identifier: Apache-2.0

package verdict

import "strings"

// field is a FieldRule, compiled.
type field struct {
	name string // in lower case; of a prefix rule, what names begin with
	rule
	counter int32 // see Head.counter
	next    uint8 // 1 + place of the next field in the same slot; 0: none
	// alone says that the rule holds only where its dialect is the only one.
	alone bool
}

// rule is the part of a FieldRule that is needed to read a value.
type rule struct {
	says   Says
	unit   Unit
	window int64 // ns
	toFull bool
	other  bool
}

// index finds the field of a name. Fields that say nothing are most of a head,
// so a miss has to be cheap: three letters and the length make a slot, and few
// slots are taken.
type index struct {
	slots    [1024]uint8 // 1 + place in fields; 0: none
	fields   []field
	prefixes []uint8 // places in fields
	initials uint32  // letters that prefixes begin with
}

// slot is a name's place in index.slots. The name is not empty. The letters
// are folded by one bit, which is right for letters and the same for both
// sides for all else.
func slot(name []byte) uint {
	n := uint(len(name))
	first, middle, last := uint(name[0]|0x20), uint(name[n/2]|0x20), uint(name[n-1]|0x20)
	return (n*61 + first*7 + middle*37 + last*151) % 1024
}

// add adds a field unless its name is there already, and returns its place.
func (x *index) add(f field) int {
	prefix, isPrefix := strings.CutSuffix(f.name, "*")
	for i := range x.fields {
		if x.fields[i].name == prefix {
			return i
		}
	}
	place := len(x.fields)
	f.name = prefix
	if isPrefix {
		x.prefixes = append(x.prefixes, uint8(place))
		x.initials |= initial(prefix[0])
	} else {
		s := slot([]byte(prefix))
		f.next, x.slots[s] = x.slots[s], uint8(place+1)
	}
	x.fields = append(x.fields, f)
	return place
}

// find is the field of a name, in any case, and its place; nil if there is
// none. The name is not empty.
func (x *index) find(name []byte) (*field, int) {
	for n := x.slots[slot(name)]; n != 0; {
		f := &x.fields[n-1]
		if is(name, f.name) {
			return f, int(n - 1)
		}
		n = f.next
	}
	if x.initials&initial(name[0]) != 0 {
		return x.findPrefix(name)
	}
	return nil, 0
}

func (x *index) findPrefix(name []byte) (*field, int) {
	for _, n := range x.prefixes {
		if _, ok := cutWord(name, x.fields[n].name); ok {
			return &x.fields[n], int(n)
		}
	}
	return nil, 0
}

// initial is the bit of a name's first letter.
func initial(c byte) uint32 { return 1 << (c & 31) }
