// SPDX-License-Identifier: Apache-2.0

package exitid

import (
	"encoding/base64"
	"strings"
	"testing"
)

// basic is the field value for credentials.
func basic(credentials string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

var basicValues = []struct {
	value string
	user  string // "" for not ok
}{
	{"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Aladdin"}, // RFC 7617 §2
	{"Basic dGVzdDoxMjPCow==", "test"},                // RFC 7617 §2.1
	{"basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Aladdin"},
	{"BASIC   QWxhZGRpbjpvcGVuIHNlc2FtZQ==  ", "Aladdin"},
	{" Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Aladdin"},
	{basic("user-acme-session-a1:sesame"), "user-acme-session-a1"},
	{basic("acme__cr.au;sessid.123:p"), "acme__cr.au;sessid.123"},
	{basic("a:"), "a"},
	{basic("a:b:c"), "a"},
	{basic("ab:c"), "ab"},
	{basic("abc:d"), "abc"},
	{basic("J\u00fcrgen:p"), "J\u00fcrgen"},
	{basic(strings.Repeat("u", MaxUser) + ":p"), strings.Repeat("u", MaxUser)},

	{basic(strings.Repeat("u", MaxUser+1) + ":p"), ""},
	{basic(":p"), ""},
	{basic("acme"), ""},
	{basic(""), ""},
	{basic("a\x00b:p"), ""},
	{basic("a\x7f:p"), ""},
	{basic("a\r\nb:p"), ""},
	{"", ""},
	{"Basic", ""},
	{"Basic ", ""},
	{"Basic\tQWxhZGRpbjpvcGVuIHNlc2FtZQ==", ""},
	{"Basic:QWxhZGRpbjpvcGVuIHNlc2FtZQ==", ""},
	{"BasicQWxhZGRpbjpvcGVuIHNlc2FtZQ==", ""},
	{"Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==", ""},
	{"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ", ""},      // no padding
	{"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=", ""},     // half of it
	{"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ===", ""},   // too much
	{"Basic QWxhZGRpbjpvcGVuIHNlc2Ft====", ""},    // nothing but
	{"Basic QWxhZGRpbjpv=GVuIHNlc2FtZQ==", ""},    // inside
	{"Basic QWxhZGRpbjpvcGVuI Nlc2FtZQ==", ""},    // two words
	{"Basic QWxhZGRpbjpvcGVu\r\nHNlc2FtZQ==", ""}, // of MIME
	{"Basic YT46-_86", ""},                        // base64url
	{"Basic =", ""},
	{"Basic ====", ""},
}

func TestBasicUser(t *testing.T) {
	for _, tt := range basicValues {
		if got, ok := BasicUser([]byte(tt.value)); got != tt.user || ok != (tt.user != "") {
			t.Errorf("BasicUser(%q) = %q, %v, want %q", tt.value, got, ok, tt.user)
		}
	}
}

func BenchmarkBasicUser(b *testing.B) {
	value := []byte(basic("brd-customer-hl_1234-zone-residential-session-mystring12345:s3cr3tp4ssw0rd"))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := BasicUser(value); !ok {
			b.Fatal("not ok")
		}
	}
}
