// SPDX-License-Identifier: Apache-2.0

package tlsread

// Secrets are those of one connection, as the lines of a key log tell them
// (RFC 9850). What is not known is nil. A Reader copies what it needs.
type Secrets struct {
	// Master is the master secret of TLS 1.2 (CLIENT_RANDOM), 48 bytes.
	Master []byte
	// ClientHandshake and ServerHandshake are the handshake traffic secrets of
	// TLS 1.3. Application data is read without them, too.
	ClientHandshake, ServerHandshake []byte
	// ClientTraffic and ServerTraffic are the first application traffic
	// secrets of TLS 1.3; those after a KeyUpdate follow from them.
	ClientTraffic, ServerTraffic []byte
}

// Complete reports whether the secrets suffice to read application data of
// both directions. A nil s is not complete.
func (s *Secrets) Complete() bool {
	return s != nil && (len(s.Master) > 0 || len(s.ClientTraffic) > 0 && len(s.ServerTraffic) > 0)
}

// of gives the secrets of TLS 1.3 that protect what a side sends.
func (s *Secrets) of(side Side) (handshake, traffic []byte) {
	if side == Client {
		return s.ClientHandshake, s.ClientTraffic
	}
	return s.ServerHandshake, s.ServerTraffic
}
