// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"errors"
	"fmt"
)

// Errors of NewReader and of a Reader, to be compared with errors.Is. What
// wraps them says why, and never tells a secret or a plaintext.
var (
	// ErrUnsupported is a version, a cipher suite or a feature that is not read.
	ErrUnsupported = errors.New("tls connection cannot be read")
	// ErrNoKeys is a secret that is missing, or has not the length that it has
	// by the cipher suite.
	ErrNoKeys = errors.New("tls secret is missing")
	// ErrEarlyData is a client that sent application data with its first
	// flight (RFC 8446 §2.3), under keys that are not among the Secrets. Since
	// that may have been a request, the rest is not read either.
	ErrEarlyData = errors.New("tls client sent early data")
	// ErrAuth is a record that the keys do not authenticate: they are those of
	// another connection, or records are missing, or were changed.
	ErrAuth = errors.New("tls record is not authentic")
	// ErrRecord is a record, or a message in it, that breaks the protocol.
	ErrRecord = errors.New("tls record is malformed")
	// ErrDoubt is a record that Skim took for application data and was not, or
	// not for sure. How much plaintext it had is unknown.
	ErrDoubt = errors.New("tls record was passed over in doubt")
)

// malformed is ErrRecord with the reason.
func malformed(why string) error { return fmt.Errorf("%w: %s", ErrRecord, why) }

// unsupported is ErrUnsupported with the reason.
func unsupported(why string) error { return fmt.Errorf("%w: %s", ErrUnsupported, why) }
