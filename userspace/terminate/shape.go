// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"

	utls "github.com/bogdanfinn/utls"
)

// errShape says that the hello that would be sent is not the client's.
var errShape = errors.New("the shape of the ClientHello cannot be kept")

// verbatim is an extension that is sent as the client sent it, GREASE,
// padding and all.
func verbatim(e extension) utls.TLSExtension {
	return &utls.GenericExtension{Id: e.id, Data: e.body}
}

// newOrigin makes the client's side of a TLS connection to the origin. Its
// ClientHello is h with a random, a session id and key shares of its own; if
// that cannot be, the error is errShape and nothing was sent.
//
// The library's own ways to imitate a hello take it apart and build it anew,
// which loses what they do not know and draws GREASE again. Here extensions
// are sent as they came, and the library is told what they promise.
func newOrigin(wire *helloConn, cfg *utls.Config) (_ *utls.UConn, err error) {
	h := wire.hello
	defer func() {
		// The library asserts by panicking.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errShape, r)
		}
	}()
	keys, err := newKeyShares(h)
	if err != nil {
		return nil, err
	}
	spec := &utls.ClientHelloSpec{
		CipherSuites:       h.suites,
		CompressionMethods: h.compression,
	}
	spec.TLSVersMin, spec.TLSVersMax = h.versionRange()
	for _, e := range h.extensions {
		switch e.id {
		case extKeyShare:
			// After a HelloRetryRequest the library looks for this type.
			spec.Extensions = append(spec.Extensions, &utls.KeyShareExtension{KeyShares: keys.public})
		case extCompressCert:
			// Without this type compressed certificates are not expected.
			algorithms := make([]utls.CertCompressionAlgo, 0, len(h.compressors))
			for _, a := range h.compressors {
				algorithms = append(algorithms, utls.CertCompressionAlgo(a))
			}
			spec.Extensions = append(spec.Extensions, &utls.UtlsCompressCertExtension{Algorithms: algorithms})
		default:
			spec.Extensions = append(spec.Extensions, verbatim(e))
		}
	}
	u := utls.UClient(wire, cfg, utls.HelloCustom, false, false, false)
	if err := u.ApplyPreset(spec); err != nil {
		return nil, fmt.Errorf("%w: %w", errShape, err)
	}
	wire.chosen = func(group uint16) { keys.choose(u.HandshakeState.State13.KeyShareKeys, group) }
	keys.adopt(u.HandshakeState.State13.KeyShareKeys)
	if err := promise(u, h, cfg); err != nil {
		return nil, err
	}
	if err := u.BuildHandshakeState(); err != nil {
		return nil, fmt.Errorf("%w: %w", errShape, err)
	}
	built, err := parseHello(u.HandshakeState.Hello.Raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errShape, err)
	}
	if !sameShape(h, built) {
		return nil, errShape
	}
	return u, nil
}

// promise tells the library what the hello offers, by which it judges the
// origin's answers.
func promise(u *utls.UConn, h *hello, cfg *utls.Config) error {
	m := u.HandshakeState.Hello
	m.Vers = h.version
	m.CipherSuites = slices.Clone(h.suites)
	m.CompressionMethods = h.compression
	m.SessionId = make([]byte, len(h.sessionID))
	if _, err := io.ReadFull(rand.Reader, m.SessionId); err != nil {
		return fmt.Errorf("draw a session id: %w", err)
	}
	m.SupportedPoints = nil
	if h.has(extPointFormats) {
		m.SupportedPoints = []byte{0} // uncompressed
	}
	m.OcspStapling = h.has(extStatusRequest)
	m.Scts = h.has(extSCT)
	m.Ems = h.has(extExtendedMaster)
	m.TicketSupported = h.has(extSessionTicket)
	m.SecureRenegotiationSupported = h.has(extRenegotiation)
	m.AlpnProtocols = h.protocols
	m.PskModes = h.pskModes
	if h.versions != nil {
		m.SupportedVersions = h.versions
	}
	m.SupportedCurves = nil
	for _, g := range h.groups {
		m.SupportedCurves = append(m.SupportedCurves, utls.CurveID(g))
	}
	cfg.CurvePreferences = m.SupportedCurves
	m.SupportedSignatureAlgorithms = nil
	for _, s := range h.signatures {
		m.SupportedSignatureAlgorithms = append(m.SupportedSignatureAlgorithms, utls.SignatureScheme(s))
	}
	return nil
}

// versionRange is the lowest and highest version that the hello offers and the
// library speaks.
func (h *hello) versionRange() (low, high uint16) {
	for v := uint16(versionTLS10); v <= versionTLS13; v++ {
		if h.offers(v) {
			if low == 0 {
				low = v
			}
			high = v
		}
	}
	return low, high
}
