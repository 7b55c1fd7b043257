// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
)

// maxPaste bounds the bytes of a text in which a response head is looked for.
const maxPaste = 256 << 10

// pastedHead is a response head out of a text.
type pastedHead struct {
	status int
	fields []pastedField
}

// pastedField is a field line. The value may have blanks around it.
type pastedField struct{ name, value []byte }

// lastHead finds the last response head in a text as curl prints it: with -i or
// -D, where heads follow each other and a body may follow the last, or with -v,
// where the lines of heads begin with "< " and others stand between them.
// What comes before the first status line is let pass, and so is a line in a
// head that is no field.
//
// A text longer than maxPaste is no mistake if the head ends before: the rest
// is body.
func lastHead(text []byte) (pastedHead, error) {
	long := len(text) > maxPaste
	p := pasteReader{}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	for line := range bytes.Lines(text[:min(len(text), maxPaste)]) {
		if !p.line(bytes.TrimRight(line, "\r\n")) {
			break
		}
	}
	switch {
	case long && (!p.found || p.inside):
		return pastedHead{}, fmt.Errorf("no response head ends in the first %d KiB of standard input; paste the head alone", maxPaste>>10)
	case p.found:
		return p.head, nil
	case len(bytes.TrimSpace(text)) == 0:
		return pastedHead{}, errors.New("nothing on standard input; pipe a response head into it, as in: curl -sD- -o /dev/null URL | egressd verdict")
	}
	return pastedHead{}, errors.New("no status line on standard input; paste the response head with its first line, as in HTTP/1.1 429 Too Many Requests")
}

// pasteReader reads a text line by line.
type pasteReader struct {
	head    pastedHead
	found   bool // head has a status line
	inside  bool // and its end was not seen
	verbose bool // lines of heads begin with "< "
	folds   bool // the last line was a field, so that the next may go on with it
}

// line takes a line without its end, and reports whether more are wanted.
func (p *pasteReader) line(line []byte) bool {
	text, marked := cutMark(line)
	if status, ok := statusLine(text); ok && (!p.found || marked == p.verbose) {
		*p = pasteReader{head: pastedHead{status: status}, found: true, inside: true, verbose: marked}
		return true
	}
	switch {
	case !p.found, p.verbose && !marked:
		return true
	case p.verbose:
		p.field(text)
		return true
	}
	return p.field(line)
}

// field takes a line that is no status line, and reports whether it can be
// part of a head or lie between two.
func (p *pasteReader) field(line []byte) bool {
	switch {
	case len(line) == 0:
		p.inside = false
		return true
	case !p.inside:
		return false
	case line[0] == ' ' || line[0] == '\t':
		if p.folds {
			last := &p.head.fields[len(p.head.fields)-1]
			// The value is a part of the text, which stays as it is.
			last.value = bytes.Join([][]byte{last.value, bytes.TrimSpace(line)}, []byte(" "))
		}
		return true
	}
	name, value, ok := bytes.Cut(line, []byte(":"))
	if p.folds = ok && isFieldName(name); p.folds {
		p.head.fields = append(p.head.fields, pastedField{name, value})
	}
	return true
}

// cutMark takes off the mark that curl -v puts before each line of a response
// head.
func cutMark(line []byte) (text []byte, marked bool) {
	if string(line) == "<" {
		return nil, true
	}
	return bytes.CutPrefix(line, []byte("< "))
}

// statusLine reads HTTP/1.1 429 Too Many Requests, or HTTP/2 429.
func statusLine(line []byte) (status int, ok bool) {
	const name = "HTTP/"
	if len(line) < len(name) || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return 0, false
	}
	version, rest, _ := bytes.Cut(line[len(name):], []byte(" "))
	if len(version) == 0 || len(bytes.Trim(version, "0123456789.")) > 0 {
		return 0, false
	}
	code, _, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
	if len(code) != 3 || code[0] == '0' {
		return 0, false
	}
	for _, c := range code {
		if c < '0' || c > '9' {
			return 0, false
		}
		status = 10*status + int(c-'0')
	}
	return status, true
}

// isFieldName reports whether b is a token (RFC 9110 section 5.6.2).
func isFieldName(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), c) >= 0 {
			return false
		}
	}
	return len(b) > 0
}
