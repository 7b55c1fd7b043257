// SPDX-License-Identifier: Apache-2.0

// Package http1 finds the boundaries of HTTP/1.x messages in a byte stream and
// the facts that egressd needs of them: method, host, path, framing,
// persistence. It does no I/O, builds no message (but egressd's own refusals)
// and changes no byte: who drives it forwards exactly what was read, so order,
// case and spacing of the fields reach the other side as they were sent.
//
// The two directions are judged differently. Requests come from whoever wants
// to get past a gate, and whatever two readers could frame differently is
// refused (RFC 9112 §11.2). Responses are read as leniently as browsers do, as
// long as the end of the message is beyond doubt.
//
// Lines of a head are judged when they are complete, in order: how the stream
// was cut into pieces never changes a result.
//
// A response ends where its framing says. What a server sends after it without
// being asked (a body to HEAD, say, or beyond Content-Length) must not be taken
// for the answer to the next request: the driver closes such a connection.
//
// All slices in heads are views into the caller's buffer. They are valid until
// the caller changes or moves that buffer, and never outlive it.
package http1

// MaxHead is the size in bytes that a head, or the trailer section of a
// chunked body, may have.
const MaxHead = 64 << 10

// MaxFields is the number of field lines that a head may have. Together with
// MaxHead it bounds the work of reading a head that arrives line by line.
const MaxFields = 1000

// maxLeading is the number of empty lines tolerated before a start line
// (RFC 9112 §2.2). They count as part of the head and are forwarded.
const maxLeading = 4
