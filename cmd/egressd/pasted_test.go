// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// text writes a head as the tests want it.
func (p pastedHead) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", p.status)
	for _, f := range p.fields {
		fmt.Fprintf(&b, " [%s=%s]", f.name, bytes.TrimSpace(f.value))
	}
	return b.String()
}

func TestLastHead(t *testing.T) {
	body := strings.Repeat("x: y\n", maxPaste/5)
	for _, c := range []struct{ name, text, want string }{
		{"HTTP/1.1", "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\nServer: x\r\n\r\n", "429 [Retry-After=5] [Server=x]"},
		{"HTTP/2", "HTTP/2 429 \r\nretry-after: 5\r\n\r\n", "429 [retry-after=5]"},
		{"HTTP/3 without a blank", "HTTP/3 429\nretry-after: 5\n\n", "429 [retry-after=5]"},
		{"no end", "HTTP/1.1 200 OK\nA: 1", "200 [A=1]"},
		{"nothing but a status line", "HTTP/1.0 503", "503"},
		{"body", "HTTP/1.1 200 OK\nA: 1\n\n{\"B: 2\"}\nC: 3\n", "200 [A=1]"},
		{"body that shows a head", "HTTP/1.1 200 OK\nA: 1\n\n<pre>\nHTTP/1.1 404 Not Found\nB: 2\n", "200 [A=1]"},
		{"long body", "HTTP/1.1 200 OK\nA: 1\n\n" + body, "200 [A=1]"},
		{"redirect", "HTTP/1.1 301 Moved\r\nLocation: /\r\nA: 0\r\n\r\nHTTP/1.1 200 OK\r\nA: 1\r\n\r\nbody", "200 [A=1]"},
		{"continue", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: 1\r\n\r\n", "200 [A=1]"},
		{"CONNECT", "HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 429 \r\na: 1\r\n\r\n", "429 [a=1]"},
		{"no blank line between", "HTTP/1.1 301 Moved\nA: 0\nHTTP/1.1 200 OK\nA: 1\n", "200 [A=1]"},
		{"blank lines", "\n\n \nHTTP/1.1 200 OK\nA: 1\n\n\n\nHTTP/1.1 404 Not Found\n", "404"},
		{"folded", "HTTP/1.1 200 OK\nA: 1,\n\t2,\n   3\nB: 4\n", "200 [A=1, 2, 3] [B=4]"},
		{"folded by nobody", "HTTP/1.1 200 OK\n 0\nno field\n 0\nB: 4\n", "200 [B=4]"},
		{"empty value", "HTTP/1.1 200 OK\nRetry-After:\nA:1\n", "200 [Retry-After=] [A=1]"},
		{"colons", "HTTP/1.1 200 OK\nA: b:c\n: d\nE f: g\n", "200 [A=b:c]"},
		{"prompt before", "$ curl -i https://example.com\nHTTP/1.1 200 OK\nA: 1\n", "200 [A=1]"},
		{"byte order mark", "\ufeffHTTP/1.1 200 OK\nA: 1\n", "200 [A=1]"},
		{"small letters", "http/1.1 200 OK\nA: 1\n", "200 [A=1]"},
		{"a code of no class", "HTTP/1.1 999 Request denied\n", "999"},
		{"curl -v", "* Connected to x\n> GET / HTTP/1.1\n> Host: x\n> \n* TLS\n< HTTP/1.1 429 Too Many Requests\r\n< Retry-After: 5\r\n* note: this\n< A: 1\r\n< \r\n{ [5 bytes data]\nB: 2\n* Connection #0 left intact\n", "429 [Retry-After=5] [A=1]"},
		{"curl -v, redirect", "> GET / HTTP/1.1\n< HTTP/1.1 301 Moved\n< A: 0\n<\n* Issue another request\n> GET /b HTTP/1.1\n< HTTP/2 200\n< a: 1\n<\n<html>\n< HTTP\n", "200 [a=1]"},
		{"curl -v -i", "< HTTP/1.1 429 x\n< A: 1\n< \nHTTP/1.1 200 x\nB: 2\n\n", "429 [A=1]"},
		{"marks in a body", "HTTP/1.1 200 OK\nA: 1\n\n< HTTP/1.1 429 x\n", "200 [A=1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := []byte(c.text)
			head, err := lastHead(text)
			if err != nil || head.text() != c.want {
				t.Errorf("got %s, %v; want %s", head.text(), err, c.want)
			}
			if string(text) != c.text {
				t.Error("the text was changed")
			}
		})
	}
}

func TestLastHeadErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "nothing on standard input"},
		{"blank", " \r\n\t\n", "nothing on standard input"},
		{"no status line", "Retry-After: 5\n", "no status line"},
		{"a request", "GET / HTTP/1.1\nHost: x\n", "no status line"},
		{"no number", "HTTP/1.1 OK\n", "no status line"},
		{"two digits", "HTTP/1.1 42 x\n", "no status line"},
		{"four digits", "HTTP/1.1 4290\n", "no status line"},
		{"below the classes", "HTTP/1.1 099 x\n", "no status line"},
		{"no version", "HTTP/ 200 OK\n", "no status line"},
		{"words as a version", "HTTP/one 200 OK\n", "no status line"},
		{"too long", "HTTP/1.1 200 OK\n" + strings.Repeat("a: 1\n", maxPaste/5), "no response head ends in the first 256 KiB"},
		{"too long, no head", strings.Repeat("a", maxPaste+1), "no response head ends in the first 256 KiB"},
	} {
		head, err := lastHead([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) || len(head.fields) > 0 {
			t.Errorf("%s: got %s, %v; want an error with %q", c.name, head.text(), err, c.want)
		}
	}
}

// A head that was found reads the same when it is written down plainly.
func FuzzLastHead(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\n\r\nbody",
		"HTTP/1.1 100 Continue\n\nHTTP/2 200\na: 1,\n 2\n",
		"* x\n< HTTP/1.1 301 Moved\n< A: 0\n<\n< HTTP/2 200\n< a: 1\n<\n<html>",
		"\ufeffHTTP/3 999", "HTTP/", "<",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		head, err := lastHead(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || head.status != 0 || head.fields != nil {
				t.Errorf("got %s and error %q", head.text(), err)
			}
			return
		}
		if head.status < 100 || head.status > 999 {
			t.Errorf("status %d", head.status)
		}
		var plain bytes.Buffer
		fmt.Fprintf(&plain, "HTTP/1.1 %d\r\n", head.status)
		for _, f := range head.fields {
			if !isFieldName(f.name) || bytes.ContainsRune(f.value, '\n') {
				t.Errorf("field %q: %q", f.name, f.value)
			}
			fmt.Fprintf(&plain, "%s:%s\r\n", f.name, f.value)
		}
		again, err := lastHead(plain.Bytes())
		if err != nil || again.text() != head.text() {
			t.Errorf("got %q, then %q, %v", head.text(), again.text(), err)
		}
	})
}
