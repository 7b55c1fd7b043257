// SPDX-License-Identifier: Apache-2.0

package http1

import "bytes"

// Form is the form of a request target (RFC 9112 §3.2).
type Form uint8

// Forms of a request target.
const (
	Origin    Form = iota // "/path?query"
	Absolute              // "http://host/path": to a forward proxy, mostly
	Authority             // "host:port" of CONNECT
	Asterisk              // "*" of OPTIONS
)

// RequestHead is what a request head says. Slices are views into the buffer
// given to ParseRequest. A RequestHead may be reused for any number of heads.
type RequestHead struct {
	Method []byte
	Target []byte // as sent
	Scheme []byte // of an absolute target, as sent
	// Authority is the host and port that the request is for, without
	// userinfo: that of an absolute or CONNECT target, else the Host field
	// (RFC 9112 §3.2.2: the target wins). It may be empty: then only the
	// connection's own destination says where the request goes.
	Authority []byte
	Host      []byte // Authority without the port; an IPv6 literal keeps its brackets
	Port      uint16 // the port that Authority names, or 0
	// Path is the path of an origin or absolute target, without query; "/" if
	// an absolute target has none. Empty for the other forms. It must not be
	// written to.
	Path []byte

	Form  Form
	Minor uint8 // of HTTP/1.Minor, 0 or 1

	Expect100 bool // the client waits for 100 (Continue) before it sends the body
	Upgrade   bool // the client offers to switch protocols; 101 starts a tunnel
	Close     bool // the client will not reuse the connection after the answer

	Body Body // framing of the body that follows the head
	Len  int  // bytes of the head with the final empty line and any empty lines before it
}

// Kind is what the framing of a response depends on in its request
// (RFC 9112 §6.3). It outlives the request's bytes.
type Kind uint8

// Bits of Kind.
const (
	ForHEAD    Kind = 1 << iota // the answer has no body
	ForCONNECT                  // a 2xx answer starts a tunnel
	ForUpgrade                  // a 101 answer starts a tunnel
)

// Kind returns what ParseResponse must know of the request.
func (h *RequestHead) Kind() (k Kind) {
	switch string(h.Method) {
	case "HEAD":
		k = ForHEAD
	case "CONNECT":
		k = ForCONNECT
	}
	if h.Upgrade {
		k |= ForUpgrade
	}
	return k
}

// requestFields counts the fields that may appear once, and keeps their values
// until the whole head is known.
type requestFields struct {
	hosts, lengths, codings, upgrades int
	host, length, coding              []byte
	connection                        connection
}

// ParseRequest reads the head of a request at the start of b into h and
// returns its length. It returns 0 and no error if b does not hold the whole
// head yet; seen is then how many bytes of b an earlier call for this head was
// given, so that a head that trickles in is not read anew for each byte. A
// seen of 0 is always right.
//
// It refuses what RFC 9112 §11.2 warns of: every error is an *Error, after
// which nothing more may be read from the connection. It never allocates.
//
// Decisions where the RFCs leave a choice: line ends are CRLF only; a repeated
// Content-Length is refused even if the values agree; the only transfer
// coding is one "chunked", and not in HTTP/1.0; an HTTP/1.1 request without
// Host is refused unless it is a CONNECT, whose target says it all; a CONNECT
// must have a port and no content; host names have letters, digits, "-", "."
// and "_" only.
func ParseRequest(h *RequestHead, b []byte, seen int) (int, error) {
	*h = RequestHead{}
	full := len(b) >= MaxHead
	if full {
		b = b[:MaxHead]
	}
	n, e := 0, (*Error)(nil)
	if seen <= 0 || seen >= len(b) || bytes.IndexByte(b[seen:], '\n') >= 0 {
		n, e = h.parse(b)
	}
	switch {
	case e != nil:
		*h = RequestHead{}
		return 0, e
	case n == 0 && full:
		*h = RequestHead{}
		return 0, inRequest(headTooLarge)
	case n == 0:
		*h = RequestHead{}
	}
	return n, nil
}

func (h *RequestHead) parse(b []byte) (int, *Error) {
	at, e := 0, (*Error)(nil)
	var line []byte
	for range maxLeading + 1 {
		line, at, e = nextLine(b, at)
		if line == nil || e != nil {
			return 0, e
		}
		if len(line) > 0 {
			break
		}
	}
	if e := h.startLine(line); e != nil {
		return 0, e
	}
	var f requestFields
	for range MaxFields + 1 {
		name, value, next := fieldLine(b, at)
		if next == 0 {
			// No field line: the end, an incomplete line or a bad one.
			line, next, e := nextLine(b, at)
			switch {
			case line == nil || e != nil:
				return 0, e
			case len(line) > 0:
				return 0, badField(line)
			}
			h.Len = next
			if e := h.conclude(&f); e != nil {
				return 0, e
			}
			return next, nil
		}
		h.field(&f, name, value)
		at = next
	}
	return 0, inRequest(tooManyFields)
}

// fieldLine splits the field line that starts at at, in one look at each byte.
// next is 0 if there is no complete and valid one.
func fieldLine(b []byte, at int) (name, value []byte, next int) {
	i := tokenEnd(b, at)
	if i == at || i == len(b) || b[i] != ':' {
		return nil, nil, 0
	}
	end := valueEnd(b, i+1)
	if end+1 >= len(b) || b[end] != '\r' || b[end+1] != '\n' {
		return nil, nil, 0
	}
	return b[at:i:i], b[i+1 : end : end], end + 2
}

// nextLine returns the line of b that starts at at, without its CRLF, and
// where the next one starts. The line is nil if it is not complete.
func nextLine(b []byte, at int) (line []byte, next int, e *Error) {
	i := bytes.IndexByte(b[at:], '\n')
	if i < 0 {
		return nil, at, nil
	}
	if i == 0 || b[at+i-1] != '\r' {
		return nil, at, inRequest(bareLF)
	}
	return b[at : at+i-1 : at+i-1], at + i + 1, nil
}

// startLine reads "method SP target SP HTTP/1.x".
func (h *RequestHead) startLine(line []byte) *Error {
	i := tokenEnd(line, 0)
	switch {
	case i == 0 || i < len(line) && line[i] != ' ':
		if bytes.IndexByte(line, '\r') >= 0 {
			return inRequest(bareCR)
		}
		return inRequest(invalidMethod)
	case i == len(line):
		return inRequest(malformedRequestLine)
	}
	h.Method = line[:i:i]
	rest := line[i+1:]
	const version = " HTTP/1.1"
	j := len(rest) - len(version)
	if j < 0 || string(rest[j:j+6]) != " HTTP/" || rest[j+7] != '.' || !digit(rest[j+6]) || !digit(rest[j+8]) {
		if bytes.IndexByte(line, '\r') >= 0 {
			return inRequest(bareCR)
		}
		return inRequest(malformedRequestLine)
	}
	if rest[j+6] != '1' || rest[j+8] > '1' {
		return inRequest(unsupportedVersion)
	}
	h.Minor = rest[j+8] - '0'
	h.Target = rest[:j:j]
	if !validTarget(h.Target) {
		if bytes.IndexByte(h.Target, '\r') >= 0 {
			return inRequest(bareCR)
		}
		return inRequest(invalidTarget)
	}
	return h.target()
}

func digit(c byte) bool { return c-'0' <= 9 }

// field takes note of one field line.
func (h *RequestHead) field(f *requestFields, name, value []byte) {
	switch len(name) {
	case len("host"):
		if equalFold(name, "host") {
			f.hosts++
			f.host = trim(value)
		}
	case len("expect"):
		if equalFold(name, "expect") && equalFold(trim(value), "100-continue") {
			h.Expect100 = true
		}
	case len("upgrade"):
		if equalFold(name, "upgrade") {
			f.upgrades++
		}
	case len("connection"):
		if equalFold(name, "connection") {
			f.connection.add(value)
		}
	case len("content-length"):
		if equalFold(name, "content-length") {
			f.lengths++
			f.length = trim(value)
		}
	case len("transfer-encoding"):
		if equalFold(name, "transfer-encoding") {
			f.codings++
			f.coding = trim(value)
		}
	}
}

// badField says what is wrong with a line that is no field line.
func badField(line []byte) *Error {
	i := tokenEnd(line, 0)
	switch {
	case bytes.IndexByte(line, '\r') >= 0:
		return inRequest(bareCR)
	case i == 0 && (line[0] == ' ' || line[0] == '\t'):
		return inRequest(obsFold)
	case i > 0 && i < len(line) && (line[i] == ' ' || line[i] == '\t'):
		return inRequest(spaceBeforeColon)
	case i == 0 || i == len(line) || line[i] != ':':
		return inRequest(invalidFieldName)
	}
	return inRequest(invalidFieldValue)
}

// conclude draws the conclusions that need the whole head.
func (h *RequestHead) conclude(f *requestFields) *Error {
	connect := h.Form == Authority
	switch {
	case f.hosts > 1:
		return inRequest(repeatedHost)
	case f.hosts == 0 && h.Minor >= 1 && !connect:
		return inRequest(missingHost)
	}
	if host, port, ok := splitAuthority(f.host); !ok {
		return inRequest(invalidHost)
	} else if h.Form == Origin || h.Form == Asterisk {
		h.Authority, h.Host, h.Port = f.host, host, port
	}

	h.Body = Body{kind: BodyNone, state: bodyDone, strict: true}
	switch {
	case f.codings > 0 && f.lengths > 0:
		return inRequest(lengthAndCoding)
	case f.codings > 1:
		return inRequest(repeatedCoding)
	case f.codings == 1 && h.Minor == 0:
		return inRequest(codingInHTTP10)
	case f.codings == 1 && !equalFold(f.coding, "chunked"):
		return inRequest(unsupportedCoding)
	case f.codings == 1 && connect:
		return inRequest(contentInConnect)
	case f.codings == 1:
		h.Body = chunkedBody(true)
	case f.lengths > 1:
		return inRequest(repeatedLength)
	case f.lengths == 1:
		n, ok := decimal(f.length)
		if !ok {
			return inRequest(invalidLength)
		}
		if connect && n > 0 {
			return inRequest(contentInConnect)
		}
		h.Body = lengthBody(n, true)
	}

	h.Upgrade = h.Minor >= 1 && f.upgrades > 0 && f.connection&connectionUpgrade != 0
	h.Expect100 = h.Expect100 && h.Minor >= 1
	h.Close = f.connection.closes(h.Minor)
	return nil
}
