// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/tls"
	"slices"
)

// Versions of TLS as they are on the wire.
const (
	versionTLS10 = tls.VersionTLS10
	versionTLS12 = tls.VersionTLS12
	versionTLS13 = tls.VersionTLS13
)

var (
	// suites13 and suites12 are what the client can be answered with: a leaf
	// has a key on P-256.
	suites13 = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}
	suites12 = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	// answerGroups are the groups that the client can be answered with.
	answerGroups = []uint16{groupX25519ML, groupX25519, groupP256, groupP384, groupP521}
)

// answerable reports whether the client that sent h can be answered with the
// version.
func (h *hello) answerable(version uint16) bool {
	suites := suites12
	if version == versionTLS13 {
		suites = suites13
	}
	return h.offers(version) && meet(h.suites, suites) && meet(h.groups, answerGroups) &&
		slices.Contains(h.signatures, uint16(tls.ECDSAWithP256AndSHA256))
}

// meet reports whether a and b have one in common.
func meet(a, b []uint16) bool {
	return slices.ContainsFunc(a, func(v uint16) bool { return slices.Contains(b, v) })
}
