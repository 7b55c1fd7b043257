// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"

	"github.com/egressd/egressd/userspace/http1"
)

// AppendRefusal appends the answer r to the request on a stream: a Headers frame
// and, unless the request was a HEAD, the body in Data frames of at most maxFrame
// bytes. The last of them ends the stream. It says what the answer in HTTP/1.1
// says, but for Connection, which HTTP/2 does not have (RFC 9113 §8.2.2): a
// connection is ended by AppendGoAway. No table is changed by it.
func AppendRefusal(dst []byte, stream uint32, r *http1.Refusal, maxFrame int) []byte {
	message := http1.AppendRefusal(nil, r)
	end := []byte("\r\n\r\n")
	at := bytes.Index(message, end) + len(end)
	head, body := message[:at], message[at:]
	block := AppendStatus(nil, r.Status)
	http1.Fields(head, func(name, value []byte) bool {
		if !http1.EqualFold(name, "connection") {
			block = AppendField(block, bytes.ToLower(name), value)
		}
		return true
	})
	if len(body) == 0 {
		return AppendHeaders(dst, stream, EndStream, block, maxFrame)
	}
	dst = AppendHeaders(dst, stream, 0, block, maxFrame)
	return AppendData(dst, stream, body, true, maxFrame)
}
