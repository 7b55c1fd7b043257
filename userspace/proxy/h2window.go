// SPDX-License-Identifier: Apache-2.0

package proxy

import "github.com/egressd/egressd/userspace/h2"

// How flow control goes on while requests are held.
//
// The body of a held request that its client sends already takes from the window
// of the whole connection (RFC 9113 §6.9), and the origin, which does not see it,
// gives none back. With the window all the bodies would stop of those requests
// that were let go, and on which the held one may be waiting. So the client is
// lent what waits, once it has little left; what the origin gives then pays
// that back first. As long as anything is lent, the origin gets no more than
// it has room for: the rest waits.
//
// What the client may still send is always window - waits + lent.

const (
	// initialWindow is that of each connection (RFC 9113 §6.9.2).
	initialWindow = 65535
	// lendBelow is how little a client may have left before it is lent more.
	lendBelow = 32 << 10
)

// windows is the flow control of bodies to the origin, in bytes.
type windows struct {
	window int64 // what the origin takes on the connection
	waits  int64 // of bodies in the queue
	lent   int64 // what the client was given before the origin gave it
	owed   int64 // what is to be given to it next
}

// short says that the origin has no room for n bytes of a body, which the client
// was lent.
func (w *windows) short(n uint32) bool { return w.lent > 0 && w.window < int64(n) }

// lend gives the client what waits, if it has little left.
func (w *windows) lend() {
	if n := w.waits - w.lent; n > 0 && w.window-n < lendBelow {
		w.lent += n
		w.owed += n
	}
}

// overdrawn says that the client takes more than it was given. That is for the
// origin to judge: nothing waits for room any more.
func (w *windows) overdrawn() bool {
	if w.lent == 0 || w.window-w.waits+w.lent >= 0 {
		return false
	}
	w.lent = 0
	return true
}

// giveBack returns to the client what the origin will not get.
func (w *windows) giveBack(n int64) {
	paid := min(n, max(0, w.lent-w.waits))
	w.lent -= paid
	w.owed += n - paid
}

// given takes note of n bytes that the origin gives, and returns how many of
// them are for the client.
func (w *windows) given(n int64) int64 {
	w.window += n
	paid := min(n, w.lent)
	w.lent -= paid
	return n - paid
}

// appendOwed appends the frame that gives the client what it is owed.
func (w *windows) appendOwed(dst []byte) []byte {
	if w.owed > 0 {
		dst = h2.AppendWindowUpdate(dst, 0, uint32(w.owed))
		w.owed = 0
	}
	return dst
}
