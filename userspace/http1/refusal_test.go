// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"
)

func TestAppendRefusal(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    Refusal
		want string
	}{
		{"limited", Refusal{Status: 429, RetryAfter: 1500 * time.Millisecond, Error: "http_request_denied", Details: `lane "store" \ caf` + "\u00e9",
			Date: time.Date(2025, 11, 29, 15, 52, 11, 0, time.FixedZone("", 3600)), Body: "wait\n"},
			"HTTP/1.1 429 Too Many Requests\r\nDate: Sat, 29 Nov 2025 14:52:11 GMT\r\nRetry-After: 2\r\n" +
				`Proxy-Status: egressd; error=http_request_denied; details="lane \"store\" \\ caf??"` + "\r\n" +
				"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\nwait\n"},
		{"close", Refusal{Status: 400, Close: true, Body: "no\n"},
			"HTTP/1.1 400 Bad Request\r\nProxy-Status: egressd\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"},
		{"to HEAD", Refusal{Status: 429, RetryAfter: time.Second, Body: "wait\n", ToHEAD: true},
			"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nProxy-Status: egressd\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\n"},
		{"a nanosecond", Refusal{Status: 429, RetryAfter: 1},
			"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nProxy-Status: egressd\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 0\r\n\r\n"},
		{"no wait", Refusal{Status: 503, RetryAfter: -time.Second},
			"HTTP/1.1 503 Service Unavailable\r\nProxy-Status: egressd\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 0\r\n\r\n"},
		{"unknown status", Refusal{Status: 599},
			"HTTP/1.1 599 \r\nProxy-Status: egressd\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 0\r\n\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := AppendRefusal([]byte("before"), &tt.r)
			if want := "before" + tt.want; string(got) != want {
				t.Errorf("response:\n got %q\nwant %q", got, want)
			}
		})
	}
}

// Every status that an Error carries has a reason phrase, and net/http and
// ParseResponse both read the answer to its end.
func TestAppendRefusalIsReadable(t *testing.T) {
	for i := range reasons {
		r := Refusal{Status: reasons[i].Status, RetryAfter: time.Minute, Error: "http_request_error", Details: reasons[i].Reason, Body: "x\n", Close: true}
		answer := AppendRefusal(nil, &r)
		if got, want := statusText(r.Status), http.StatusText(r.Status); got != want && r.Status != 413 {
			t.Errorf("phrase of %d = %q, want %q", r.Status, got, want)
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		if err != nil {
			t.Fatalf("net/http reads %q: %v", answer, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != r.Body || resp.StatusCode != r.Status || !resp.Close {
			t.Errorf("net/http read %d, %q, close %t, %v", resp.StatusCode, body, resp.Close, err)
		}
		if got := driveResponse(t, 0, answer); !got.done || got.length+got.body != len(answer) {
			t.Errorf("ParseResponse: %+v, want all %d bytes", got, len(answer))
		}
	}
}
