// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/base64"
	"fmt"
	"io"
)

// Secret is a text that is never shown: whatever prints or encodes it, or a
// value that holds it, gets a placeholder. Immutable; the zero Secret is the
// empty text.
type Secret struct {
	// Behind a pointer, so that even what is printed by reflection, past the
	// methods below, as fields without a capital are, shows an address.
	text *string
}

// NewSecret makes a secret of a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// hidden stands for every secret but the empty one.
const hidden = "[secret]"

// String is a placeholder, "" for the empty secret.
func (s Secret) String() string {
	if s.text == nil {
		return ""
	}
	return hidden
}

// GoString is the placeholder.
func (s Secret) GoString() string { return s.String() }

// Format writes the placeholder, whatever the verb: those for numbers and
// hexadecimal digits would reach the text otherwise.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // fmt has no way to hear of an error
}

// MarshalText is the placeholder, for encoders of text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON is the placeholder as a string.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML is the placeholder.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// Basic is the value of a Proxy-Authorization field that logs user in with the
// secret as the password (RFC 7617). It is the only way to the text, and as
// secret as that: it goes to the proxy and nowhere else. The caller owns it.
func (s Secret) Basic(user string) []byte {
	const scheme = "Basic "
	login := make([]byte, 0, len(user)+1+64)
	login = append(append(login, user...), ':')
	if s.text != nil {
		login = append(login, *s.text...)
	}
	value := append(make([]byte, 0, len(scheme)+base64.StdEncoding.EncodedLen(len(login))), scheme...)
	return base64.StdEncoding.AppendEncode(value, login)
}
