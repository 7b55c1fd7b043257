// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Log is what an origin remembers, in the order in which it came.
type Log struct {
	Connections []Connection `json:"connections"`
	Requests    []Request    `json:"requests"`
}

// Connection is a connection that a ClientHello came on.
type Connection struct {
	ID      int    `json:"id"` // from 1 on
	From    string `json:"from"`
	At      int64  `json:"at"` // when it was accepted, ns of CLOCK_MONOTONIC
	Random  string `json:"random"`
	SNI     string `json:"sni"`
	JA3     string `json:"ja3"`
	JA3Hash string `json:"ja3_hash"`
	JA4     string `json:"ja4"`
	JA4R    string `json:"ja4_r"`
	ALPN    string `json:"alpn"`    // agreed upon
	Version uint16 `json:"version"` // of TLS, agreed upon; 0: the handshake failed
	Resumed bool   `json:"resumed"`
	HTTP2   *HTTP2 `json:"http2,omitempty"`
	Err     string `json:"err,omitempty"` // why the origin ended it
}

// HTTP2 is how a client began an HTTP/2 connection: what it sent before its
// first request.
type HTTP2 struct {
	Settings     []Setting  `json:"settings"`
	WindowUpdate uint32     `json:"window_update"` // of the connection
	Priorities   []Priority `json:"priorities,omitempty"`
	Pseudo       string     `json:"pseudo"` // of the first request: "m,p,a,s"
}

// Setting is one of a SETTINGS frame (RFC 9113 §6.5.1).
type Setting struct {
	ID    uint16 `json:"id"`
	Value uint32 `json:"value"`
}

// Priority is of a PRIORITY frame, or of a HEADERS frame that has one in it
// (RFC 7540 §6.3).
type Priority struct {
	Stream    uint32 `json:"stream"`
	Exclusive bool   `json:"exclusive"`
	DependsOn uint32 `json:"depends_on"`
	Weight    int    `json:"weight"` // from 1 to 256
}

// Fingerprint writes the beginning as fingerprints of HTTP/2 commonly do:
// settings, window, priorities and order of pseudo-header fields.
func (h *HTTP2) Fingerprint() string {
	var settings, priorities []string
	for _, s := range h.Settings {
		settings = append(settings, fmt.Sprintf("%d:%d", s.ID, s.Value))
	}
	for _, p := range h.Priorities {
		exclusive := 0
		if p.Exclusive {
			exclusive = 1
		}
		priorities = append(priorities, fmt.Sprintf("%d:%d:%d:%d", p.Stream, exclusive, p.DependsOn, p.Weight))
	}
	if len(priorities) == 0 {
		priorities = []string{"0"}
	}
	return fmt.Sprintf("%s|%d|%s|%s", strings.Join(settings, ";"), h.WindowUpdate, strings.Join(priorities, ","), h.Pseudo)
}

// Field is a field of a head.
type Field struct {
	Name  string `json:"name"` // as it was sent
	Value string `json:"value"`
}

// Request is a request and how the origin answered it.
type Request struct {
	Connection int       `json:"connection"`
	Stream     uint32    `json:"stream"` // 0 in HTTP/1
	At         int64     `json:"at"`     // when its head was complete, ns of CLOCK_MONOTONIC
	Client     string    `json:"client"` // address without port
	Method     string    `json:"method"`
	Path       string    `json:"path"`           // with the query
	Line       string    `json:"line,omitempty"` // the request line of HTTP/1
	Fields     []Field   `json:"fields"`         // with pseudo-header fields
	Priority   *Priority `json:"priority,omitempty"`
	Status     int       `json:"status"`
	RetryAfter string    `json:"retry_after,omitempty"`
}

// Names are the names of the fields, in order.
func (r *Request) Names() (names []string) {
	for _, f := range r.Fields {
		names = append(names, f.Name)
	}
	return names
}

// clone is a copy that shares nothing with what is still written to.
func (l *Log) clone() Log {
	c := Log{Connections: slices.Clone(l.Connections), Requests: slices.Clone(l.Requests)}
	for i := range c.Connections {
		if h := c.Connections[i].HTTP2; h != nil {
			begin := *h
			begin.Settings, begin.Priorities = slices.Clone(h.Settings), slices.Clone(h.Priorities)
			c.Connections[i].HTTP2 = &begin
		}
	}
	return c
}

// ReadLog reads the log of an origin that runs as a process of its own, from
// its socket.
func ReadLog(socket string) (l Log, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return l, fmt.Errorf("ask the origin for its log: %w", err)
	}
	defer conn.Close()
	if err := json.NewDecoder(conn).Decode(&l); err != nil {
		return l, fmt.Errorf("read the log of the origin: %w", err)
	}
	return l, nil
}
