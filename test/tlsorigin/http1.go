// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
)

// maxHead bounds a head of HTTP/1.
const maxHead = 64 << 10

// serveHTTP1 answers one request after the other.
func (k *link) serveHTTP1() error {
	in := bufio.NewReader(k.conn)
	for {
		head, err := readHead(in)
		if err != nil {
			return err
		}
		at := int64(k.origin.clock.Now())
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		line, fields := splitHead(head)
		r := Request{At: at, Method: req.Method, Path: req.RequestURI, Line: line, Fields: fields}
		if strings.EqualFold(req.Header.Get("Expect"), "100-continue") {
			if _, err := io.WriteString(k.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		if err := skipBody(in, req); err != nil {
			return err
		}
		a := k.decide(r)
		last := req.Close || !req.ProtoAtLeast(1, 1) && !strings.EqualFold(req.Header.Get("Connection"), "keep-alive")
		if _, err := k.conn.Write(renderHTTP1(a, req, last)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if last {
			return nil
		}
	}
}

// readHead reads until the empty line, which it returns too. It is io.EOF if
// nothing came any more.
func readHead(in *bufio.Reader) (head []byte, err error) {
	for {
		line, err := in.ReadSlice('\n')
		head = append(head, line...)
		if len(head) > maxHead {
			return nil, errors.New("a head is too long")
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(head) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case bytes.HasSuffix(head, []byte("\r\n\r\n")):
			return head, nil
		}
	}
}

// splitHead takes a head apart, and changes nothing.
func splitHead(head []byte) (line string, fields []Field) {
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n\r\n"), "\r\n")
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ":")
		fields = append(fields, Field{name, strings.TrimSpace(value)})
	}
	return lines[0], fields
}

// skipBody reads over the body of a request.
func skipBody(in *bufio.Reader, req *http.Request) error {
	switch {
	case req.ContentLength > 0:
		if _, err := io.CopyN(io.Discard, in, req.ContentLength); err != nil {
			return fmt.Errorf("read a body: %w", err)
		}
	case req.ContentLength < 0:
		if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(in)); err != nil {
			return fmt.Errorf("read a body in chunks: %w", err)
		}
		// The chunked reader leaves the trailers and the empty line after them.
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return fmt.Errorf("read trailers: %w", err)
			}
			if line == "\r\n" {
				return nil
			}
		}
	}
	return nil
}

func renderHTTP1(a answer, req *http.Request, last bool) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	for _, f := range a.fields {
		fmt.Fprintf(&b, "%s: %s\r\n", http.CanonicalHeaderKey(f.Name), f.Value)
	}
	switch {
	case last:
		b.WriteString("Connection: close\r\n")
	case !req.ProtoAtLeast(1, 1):
		b.WriteString("Connection: keep-alive\r\n")
	}
	b.WriteString("\r\n")
	if req.Method != http.MethodHead {
		b.WriteString(a.body)
	}
	return b.Bytes()
}
