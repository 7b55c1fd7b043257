// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// readBudget bounds what is read of one file. The symbols of a browser take
// some 300 MB with all of its debug information and 30 MB without; a file that
// asks for more than this is not worth the time of everybody else.
const readBudget = 512 << 20

var (
	errBudget = errors.New("more to read than is allowed")
	// le is the byte order of both architectures that are known.
	le = binary.LittleEndian
)

// source reads a file within a budget. It is used by one goroutine.
type source struct {
	r    io.ReaderAt
	left int64
}

// read fills b from off on. A file that ends before is an error.
func (s *source) read(off uint64, b []byte) error {
	if int64(len(b)) > s.left {
		return errBudget
	}
	if off > 1<<62 {
		return fmt.Errorf("offset %#x is outside of any file", off)
	}
	s.left -= int64(len(b))
	n, err := s.r.ReadAt(b, int64(off))
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %#x: %w", len(b), off, err)
}

// chunkSize is how much is in memory of a long part of a file.
const chunkSize = 64 << 10

// chunks calls f with the bytes of [off, off+size) in their order, each time
// with the place of the first within the part. All chunks but the last have
// chunkSize bytes. It ends early where f returns false.
func (s *source) chunks(off, size uint64, f func(at uint64, b []byte) bool) error {
	buf := make([]byte, min(size, chunkSize))
	for at := uint64(0); at < size; {
		b := buf[:min(size-at, uint64(len(buf)))]
		if err := s.read(off+at, b); err != nil {
			return err
		}
		if !f(at, b) {
			return nil
		}
		at += uint64(len(b))
	}
	return nil
}
