// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/http1"
)

// What a client says to a pool goes to the exit's proxy byte for byte, but for
// the field by which one logs in. The client's is of no use there: any password
// will do at a pool, and the user name only tells sessions. The exit's own takes
// its place, in the line where the client's first one stood. Where there was none
// it is put behind the first field, which is Host with nearly all clients; they
// put their own there, too.

// appendLogin appends a request head, as http1.ParseRequest accepts it, to dst:
// without the Proxy-Authorization fields that it has, and with line, a whole field
// line or nothing, in their place.
func appendLogin(dst, head, line []byte) []byte {
	place := loginPlace(head)
	dst = append(dst, head[:place]...)
	dst = append(dst, line...)
	for at := place; at < len(head); {
		next := lineEnd(head, at)
		if !logsIn(head[at:next]) {
			dst = append(dst, head[at:next]...)
		}
		at = next
	}
	return dst
}

// loginPlace is where the login is in a request head, or would be.
func loginPlace(head []byte) int {
	at := 0
	for at < len(head) && (head[at] == '\r' || head[at] == '\n') {
		at++ // empty lines before the request line
	}
	at = lineEnd(head, at)
	place := at // if there are no fields
	for first := true; at < len(head) && head[at] != '\r'; first = false {
		next := lineEnd(head, at)
		if logsIn(head[at:next]) {
			return at
		}
		if first {
			place = next
		}
		at = next
	}
	return place
}

// lineEnd is where the line after that at at begins.
func lineEnd(head []byte, at int) int {
	if i := bytes.IndexByte(head[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(head)
}

// logsIn reports whether a line is a Proxy-Authorization field.
func logsIn(line []byte) bool {
	const name = "proxy-authorization"
	return len(line) > len(name) && line[len(name)] == ':' && http1.EqualFold(line[:len(name)], name)
}

// loginLine is the field line by which egressd logs in at the proxy of an exit,
// nil where it does not. It is secret.
func loginLine(p *policy.Proxy) []byte {
	if p.User == "" {
		return nil
	}
	line := append([]byte("Proxy-Authorization: "), p.Password.Basic(p.User)...)
	return append(line, "\r\n"...)
}

// logIn puts the login of the chosen exit into the request head, of n bytes, that
// the client's buffer begins with, and returns its new length. What else is in the
// buffer stays behind it. Views of the head are void then.
func (c *conn) logIn(n int) int {
	cl := &c.client
	c.l.head = appendLogin(c.l.head[:0], cl.buf[cl.r:cl.r+n], c.via.pool.line())
	head := c.l.head
	if at := cl.r + n - len(head); at >= 0 {
		copy(cl.buf[at:], head)
		cl.r = at
	} else {
		rest := cl.buf[cl.r+n : cl.w]
		buf := cl.buf
		if total := len(head) + len(rest); total > len(buf) {
			buf = make([]byte, total)
		}
		copy(buf[len(head):], rest)
		copy(buf, head)
		cl.r, cl.w = 0, len(head)+len(rest)
		if len(buf) > len(cl.buf) {
			c.l.buffers.put(cl.buf)
		}
		cl.buf = buf
	}
	clear(head) // it is secret, and what the loop uses again
	return len(head)
}
