// SPDX-License-Identifier: Apache-2.0

package h2

// Error says why a stream of frames cannot be followed. Its text is one of a
// closed set, fit for a metric label. Nothing after the place where it was
// found has a meaning.
type Error string

// Error returns the text behind the name of the protocol.
func (e Error) Error() string { return "http/2: " + string(e) }

// Errors of the framing layer.
const (
	ErrFrameSize    Error = "frame of a wrong length"
	ErrFrameTooLong Error = "frame too long"
	ErrStream       Error = "frame on a wrong stream"
	ErrContinuation Error = "header block interrupted"
	ErrPadding      Error = "padding longer than its frame"
	ErrBlockTooLong Error = "header block too long"
)

// Errors of header blocks.
const (
	ErrInteger       Error = "invalid integer in a header block"
	ErrTruncated     Error = "header block ends within a field"
	ErrHuffman       Error = "invalid huffman code in a header block"
	ErrIndex         Error = "invalid index in a header block"
	ErrSizeUpdate    Error = "invalid size update of the header table"
	ErrTooManyFields Error = "too many header fields"
	ErrFieldTooLong  Error = "header fields too long"
)
