// SPDX-License-Identifier: Apache-2.0

package http1

// connection is the set of the options of Connection fields that matter here.
type connection uint8

const (
	connectionClose connection = 1 << iota
	connectionKeepAlive
	connectionUpgrade
)

// add reads one Connection field.
func (c *connection) add(list []byte) {
	if string(list) == " keep-alive" { // by far the most common
		*c |= connectionKeepAlive
		return
	}
	for len(list) > 0 {
		var option []byte
		option, list = nextElement(list)
		switch len(option) {
		case len("close"):
			if equalFold(option, "close") {
				*c |= connectionClose
			}
		case len("upgrade"):
			if equalFold(option, "upgrade") {
				*c |= connectionUpgrade
			}
		case len("keep-alive"):
			if equalFold(option, "keep-alive") {
				*c |= connectionKeepAlive
			}
		}
	}
}

// closes reports whether the connection ends with the message (RFC 9112 §9.3).
func (c connection) closes(minor uint8) bool {
	return c&connectionClose != 0 || minor == 0 && c&connectionKeepAlive == 0
}
