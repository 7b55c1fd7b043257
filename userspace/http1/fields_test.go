// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"fmt"
	"slices"
	"testing"
)

func TestFields(t *testing.T) {
	for _, tt := range []struct {
		name, head string
		want       []string
	}{
		{"request", "GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY: \t b c \t\r\n\r\nZ: body\r\n", []string{`"Host" "a"`, `"X" ""`, `"Y" "b c"`}},
		{"no fields", "GET / HTTP/1.0\r\n\r\n", nil},
		{"empty lines first", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", []string{`"Host" "a"`}},
		{"response with odd lines", "HTTP/1.1 200\nA : b\nno colon\n: empty\nC: d\r\n\tfolded\n twice \r\nE: f:g\n\n", []string{`"A" "b"`, `"C" "d\r\n\tfolded\n twice"`, `"E" "f:g"`}},
		{"cut off", "GET / HTTP/1.1\r\nHost: a\r\nX: y", []string{`"Host" "a"`}},
		{"cut off in a fold", "HTTP/1.1 200\r\nA: b\r\nC: d\r\n e", []string{`"A" "b"`}},
		{"nothing", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			Fields(b(tt.head), func(name, value []byte) bool {
				got = append(got, fmt.Sprintf("%q %q", name, value))
				return true
			})
			if !slices.Equal(got, tt.want) {
				t.Errorf("fields = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestField(t *testing.T) {
	head := b("HTTP/1.1 429 \r\nretry-AFTER: 3\r\nRetry-After: 4\r\n\r\n")
	if got, ok := Field(head, "retry-after"); !ok || string(got) != "3" {
		t.Errorf(`Field = %q, %t, want "3", true`, got, ok)
	}
	if got, ok := Field(head, "date"); ok || got != nil {
		t.Errorf("Field = %q, %t, want nothing", got, ok)
	}
}

func TestEqualFold(t *testing.T) {
	for _, tt := range []struct {
		name string
		want bool
	}{
		{"retry-after", true}, {"Retry-After", true}, {"RETRY-AFTER", true},
		{"retry\rafter", false}, {"retry-afte", false}, {"retry_after", false},
	} {
		if got := EqualFold(b(tt.name), "retry-after"); got != tt.want {
			t.Errorf("EqualFold(%q) = %t, want %t", tt.name, got, tt.want)
		}
	}
}
