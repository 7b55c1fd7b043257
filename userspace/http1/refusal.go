// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"strconv"
	"time"
)

// Refusal is an answer that egressd gives in the place of the origin.
type Refusal struct {
	Status int
	// RetryAfter becomes Retry-After in whole seconds, rounded up and at least
	// 1: a client that comes back then is never early. Zero or less: no field.
	RetryAfter time.Duration
	// Error is the error type of Proxy-Status (RFC 9209 §2.3), such as
	// "http_request_denied"; it must be a token. Empty: none.
	Error string
	// Details is the details parameter of Proxy-Status (RFC 9209 §2.1.5).
	// Bytes that its syntax has no room for become "?". Empty: none.
	Details string
	Date    time.Time // the zero Time: no Date field
	Body    string    // text/plain; sent to other methods than HEAD
	ToHEAD  bool
	Close   bool // the connection ends with this answer
}

// ProxyName is how egressd names itself in Proxy-Status (RFC 9209 §2).
const ProxyName = "egressd"

// AppendRefusal appends the complete HTTP/1.1 response r to dst. It allocates
// only what append needs.
func AppendRefusal(dst []byte, r *Refusal) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, statusText(r.Status)...)
	if !r.Date.IsZero() {
		dst = append(dst, "\r\nDate: "...)
		dst = r.Date.UTC().AppendFormat(dst, "Mon, 02 Jan 2006 15:04:05 GMT")
	}
	if r.RetryAfter > 0 {
		seconds := int64(r.RetryAfter / time.Second)
		if r.RetryAfter%time.Second != 0 {
			seconds++
		}
		dst = append(dst, "\r\nRetry-After: "...)
		dst = strconv.AppendInt(dst, seconds, 10)
	}
	dst = append(dst, "\r\nProxy-Status: "+ProxyName...)
	if r.Error != "" {
		dst = append(dst, "; error="...)
		dst = append(dst, r.Error...)
	}
	if r.Details != "" {
		dst = append(dst, "; details="...)
		dst = appendString(dst, r.Details)
	}
	dst = append(dst, "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(r.Body)), 10)
	if r.Close {
		dst = append(dst, "\r\nConnection: close"...)
	}
	dst = append(dst, "\r\n\r\n"...)
	if !r.ToHEAD {
		dst = append(dst, r.Body...)
	}
	return dst
}

// appendString appends s as a string of structured fields (RFC 9651 §3.3.3).
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ' || c > '~':
			dst = append(dst, '?')
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// statusText is the reason phrase of the statuses that egressd answers with.
func statusText(status int) string {
	switch status {
	case 400:
		return "Bad Request"
	case 403:
		return "Forbidden"
	case 408:
		return "Request Timeout"
	case 413:
		return "Content Too Large"
	case 421:
		return "Misdirected Request"
	case 429:
		return "Too Many Requests"
	case 431:
		return "Request Header Fields Too Large"
	case 500:
		return "Internal Server Error"
	case 501:
		return "Not Implemented"
	case 502:
		return "Bad Gateway"
	case 503:
		return "Service Unavailable"
	case 504:
		return "Gateway Timeout"
	case 505:
		return "HTTP Version Not Supported"
	}
	return ""
}
