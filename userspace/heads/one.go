// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"github.com/egressd/egressd/userspace/http1"
)

// maxLeading is the number of bytes of empty lines that are passed over before
// a request.
const maxLeading = 8

// one follows one direction of HTTP/1.
type one struct {
	begun   bool // the first byte of a head has come
	inBody  bool
	tunnel  bool
	leading uint8
	body    http1.Body
	head    []byte // of a head that was cut
	seen    int    // bytes of it that were parsed, in vain
}

// keepHead is the size in bytes of memory that is kept for the next head that
// is cut.
const keepHead = 8 << 10

// gather consumes n bytes of b, which belong to a head, and returns the head if
// it is complete. parse is given what there is of it, and how many bytes of that
// it was given before.
func (o *one) gather(b []byte, parse func(p []byte, seen int) (int, error)) (head []byte, n int, err error) {
	kept := len(o.head)
	p := b
	if kept > 0 {
		b = b[:min(len(b), http1.MaxHead-kept)]
		o.head = append(o.head, b...)
		p = o.head
	}
	length, err := parse(p, o.seen)
	switch {
	case err != nil:
		return nil, 0, err
	case length > 0:
		o.seen = 0
		return p[:length:length], length - kept, nil
	case kept == 0:
		o.head = append(o.head, b...)
	}
	o.seen = len(o.head)
	return nil, len(b), nil
}

// drop forgets a head that was cut, at the call after the one that told it.
func (o *one) drop() {
	if cap(o.head) > keepHead {
		o.head = nil
	}
	o.head = o.head[:0]
}

// scan follows the body through b.
func (o *one) scan(b []byte) (n int, done bool, err error) {
	n, done, err = o.body.Scan(b)
	if done {
		o.inBody = false
	}
	return n, done, err
}

// skippable returns how many bytes of the body may pass unseen. The last byte
// of a body of known length is its end and must be seen.
func (o *one) skippable() int64 {
	if o.tunnel {
		return forever
	}
	if !o.inBody {
		return 0
	}
	left := o.body.Remaining()
	if o.body.Kind() == http1.BodyLength {
		left--
	}
	return int64(min(left, forever))
}
