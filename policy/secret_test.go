// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

// login is a value that holds a secret.
type login struct{ Password Secret }

const hush = "hush-Zaubärwort"

// encodings are all ways in which the text could be recognized.
func encodings(text string) []string {
	return []string{
		text, text[:8], fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), fmt.Sprintf("% x", text), fmt.Sprint([]byte(text)),
		base64.StdEncoding.EncodeToString([]byte(text)), fmt.Sprintf("%+q", text)[1:],
	}
}

func hides(t *testing.T, how, got string) {
	t.Helper()
	for _, e := range encodings(hush) {
		if strings.Contains(got, e) {
			t.Errorf("%s shows the secret: %s", how, got)
		}
	}
}

func TestSecretIsNeverShown(t *testing.T) {
	s := NewSecret(hush)
	proxy := Proxy{Host: "gw.example", First: 1, Last: 1, User: "u", Password: s}
	values := map[string]any{
		"secret":     s,
		"pointer":    &s,
		"field":      proxy,
		"unexported": struct{ p Proxy }{proxy},
		"deep":       struct{ p *Exit }{&Exit{Proxy: &proxy}},
		"slice":      []Secret{s},
		"map":        map[string]Secret{"k": s},
		"key":        map[Secret]int{s: 1},
		"any":        []any{s, &proxy},
		"policy":     &Policy{Exits: []Exit{{Proxy: &proxy}}},
	}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%+q", "%#q", "%x", "%X", "% x", "%#x", "%d", "%b", "%c", "%U", "%t", "%e", "%p", "%T", "%10.3s", "%w", "%!"} {
			hides(t, name+" "+verb, fmt.Sprintf(verb, v))
		}
		hides(t, name+" Sprint", fmt.Sprint(v))
		hides(t, name+" Sprintln", fmt.Sprintln(v))
		hides(t, name+" Errorf", fmt.Errorf("login: %v", v).Error())

		for _, handler := range []func(*bytes.Buffer) slog.Handler{
			func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
			func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		} {
			var b bytes.Buffer
			slog.New(handler(&b)).With("with", v).Info("login", "value", v, slog.Group("g", "value", v))
			if b.Len() == 0 {
				t.Fatal("nothing was logged")
			}
			hides(t, name+" slog", b.String())
		}
		if text, err := json.Marshal(v); err != nil {
			t.Errorf("%s: json: %v", name, err)
		} else {
			hides(t, name+" json", string(text))
		}
	}
	for name, v := range map[string]any{"secret": s, "field": login{s}} {
		text, err := xml.Marshal(v)
		if err != nil {
			t.Errorf("%s: xml: %v", name, err)
		}
		hides(t, name+" xml", string(text))
	}
	if yaml, err := s.MarshalYAML(); err != nil || yaml != hidden {
		t.Errorf("yaml: got %v, %v; want %s", yaml, err, hidden)
	}
}

// What it shows is whether there is one.
func TestSecretPlaceholder(t *testing.T) {
	for _, tt := range []struct {
		secret Secret
		want   string
	}{{NewSecret(hush), "[secret]"}, {NewSecret("x"), "[secret]"}, {NewSecret(""), ""}, {Secret{}, ""}} {
		text, err := tt.secret.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		for how, got := range map[string]string{
			"String": tt.secret.String(), "GoString": tt.secret.GoString(), "%v": fmt.Sprintf("%v", tt.secret), "%x": fmt.Sprintf("%x", tt.secret), "text": string(text),
		} {
			if got != tt.want {
				t.Errorf("%s: got %q, want %q", how, got, tt.want)
			}
		}
	}
}

func TestSecretEqual(t *testing.T) {
	if !reflect.DeepEqual(NewSecret("a"), NewSecret("a")) || reflect.DeepEqual(NewSecret("a"), NewSecret("b")) || !reflect.DeepEqual(NewSecret(""), Secret{}) {
		t.Error("secrets are not equal by their text")
	}
}

func TestBasic(t *testing.T) {
	for _, tt := range []struct{ user, password, want string }{
		{"Aladdin", "open sesame", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}, // RFC 7617 section 2
		{"test", "123£", "Basic dGVzdDoxMjPCow=="},                       // section 2.1
		{"u", "", "Basic dTo="},
		{"u", "a:b", "Basic dTphOmI="},
		{strings.Repeat("u", 1024), strings.Repeat("p", 1024), "Basic " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", 1024)+":"+strings.Repeat("p", 1024)))},
	} {
		if got := string(NewSecret(tt.password).Basic(tt.user)); got != tt.want {
			t.Errorf("%.20s, %.20s: got %s, want %s", tt.user, tt.password, got, tt.want)
		}
	}
}
