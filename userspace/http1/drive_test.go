// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"fmt"
	"testing"
)

// outcome is what a driver sees of one message at the start of a stream.
type outcome struct {
	head   string // facts of the head as text
	length int    // bytes of the head
	body   int    // bytes of the body so far
	done   bool   // the message ended
	reason string // of the error, or ""
}

// reasonOf returns the Reason of err, which must be nil or an *Error.
func reasonOf(tb testing.TB, err error) string {
	tb.Helper()
	if err == nil {
		return ""
	}
	var e *Error
	if !errors.As(err, &e) {
		tb.Fatalf("error %v is no *Error", err)
	}
	return e.Reason
}

// driveRequest feeds the pieces of a stream to the parser as they arrive.
func driveRequest(tb testing.TB, pieces ...[]byte) outcome {
	tb.Helper()
	var h RequestHead
	return drive(tb, pieces, func(b []byte, seen int) (int, string, *Body, error) {
		n, err := ParseRequest(&h, b, seen)
		return n, describeRequest(&h), &h.Body, err
	})
}

// driveResponse does the same with a response.
func driveResponse(tb testing.TB, k Kind, pieces ...[]byte) outcome {
	tb.Helper()
	var h ResponseHead
	return drive(tb, pieces, func(b []byte, seen int) (int, string, *Body, error) {
		n, err := ParseResponse(&h, b, seen, k)
		return n, describeResponse(&h), &h.Body, err
	})
}

func drive(tb testing.TB, pieces [][]byte, parse func(b []byte, seen int) (int, string, *Body, error)) (out outcome) {
	tb.Helper()
	var buf []byte
	var body *Body
	for _, p := range pieces {
		if body == nil {
			seen := len(buf)
			buf = append(buf, p...)
			n, facts, b, err := parse(buf, seen)
			if n < 0 || n > len(buf) {
				tb.Fatalf("head of %d bytes in %d", n, len(buf))
			}
			if err != nil {
				if n != 0 {
					tb.Fatalf("head of %d bytes beside the error %v", n, err)
				}
				out.reason = reasonOf(tb, err)
				return out
			}
			if n == 0 {
				continue
			}
			out.length, out.head, body = n, facts, b
			p = buf[n:]
		}
		n, done, err := body.Scan(p)
		if n < 0 || n > len(p) {
			tb.Fatalf("body of %d bytes in %d", n, len(p))
		}
		out.body += n
		if err != nil {
			if done {
				tb.Fatalf("body done beside the error %v", err)
			}
			out.reason = reasonOf(tb, err)
			return out
		}
		if done {
			out.done = true
			return out
		}
		if n != len(p) {
			tb.Fatalf("body took %d of %d bytes and is not done", n, len(p))
		}
	}
	return out
}

func describeRequest(h *RequestHead) string {
	return fmt.Sprintf("%s %s scheme=%s authority=%s host=%s port=%d path=%s form=%d minor=%d expect=%t upgrade=%t close=%t body=%d/%d",
		h.Method, h.Target, h.Scheme, h.Authority, h.Host, h.Port, h.Path, h.Form, h.Minor,
		h.Expect100, h.Upgrade, h.Close, h.Body.Kind(), h.Body.Remaining())
}

func describeResponse(h *ResponseHead) string {
	return fmt.Sprintf("%d minor=%d interim=%t tunnel=%t close=%t body=%d/%d",
		h.Status, h.Minor, h.Interim, h.Tunnel, h.Close, h.Body.Kind(), h.Body.Remaining())
}

// checkSplits drives a stream cut in two at every place, and byte by byte, and
// wants the same outcome each time.
func checkSplits(t *testing.T, stream []byte, drive func(pieces ...[]byte) outcome) {
	t.Helper()
	want := drive(stream)
	for i := range len(stream) + 1 {
		if got := drive(stream[:i], stream[i:]); got != want {
			t.Errorf("cut at %d of %q:\n got %+v\nwant %+v", i, stream, got, want)
		}
	}
	single := make([][]byte, len(stream))
	for i := range stream {
		single[i] = stream[i : i+1]
	}
	if got := drive(single...); got != want {
		t.Errorf("byte by byte of %q:\n got %+v\nwant %+v", stream, got, want)
	}
}
