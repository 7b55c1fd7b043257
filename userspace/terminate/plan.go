// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"net/netip"
	"slices"

	"github.com/egressd/egressd/userspace/sniff"
)

// Why a connection is not terminated. The set is closed, for counters.
const (
	WhyNoAuthority = "no_ca"        // there is none
	WhyMalformed   = "malformed"    // the hello cannot be read
	WhyVersion     = "version"      // older than TLS 1.2
	WhySuites      = "suites"       // nothing that the client could be answered with
	WhyResumption  = "resumption"   // a session of the origin's is to be resumed
	WhyExtension   = "extension"    // one that promises what cannot be kept
	WhyShape       = "shape"        // the hello cannot be made again
	WhyName        = "name"         // none, or outside the authority's constraints
	WhyUntrusted   = "untrusted"    // the client did not take the authority's certificate
	WhyClientCert  = "client_cert"  // the origin asks for a certificate of the client
	WhyECH         = "ech"          // the origin has ECH, and the client may have meant it
	WhyOrigin      = "origin"       // the origin did not finish its handshake
	WhyStopped     = "stopped"      // the terminator was closed
	whyLeaf        = WhyNoAuthority // the authority could not sign
)

// Reasons are all values of why.
func Reasons() []string {
	return []string{
		WhyNoAuthority, WhyMalformed, WhyVersion, WhySuites, WhyResumption, WhyExtension,
		WhyShape, WhyName, WhyUntrusted, WhyClientCert, WhyECH, WhyOrigin, WhyStopped,
	}
}

// keptExtensions are those that may be sent for a client: what an origin
// answers to them is understood here, or ends the handshake before the client
// has heard anything.
var keptExtensions = []uint16{
	extServerName, extStatusRequest, extGroups, extPointFormats, extSignatures, extALPN, extSCT,
	extPadding, extEncryptThenMAC, extExtendedMaster, extCompressCert, extRecordSizeLimit,
	extDelegated, extSessionTicket, extVersions, extPSKModes, extCertAuthorities, extPostHandshake,
	extSignaturesCert, extKeyShare, extALPS, extALPSNew, extECH, extRenegotiation,
}

// Plan is how a connection will be terminated. It is of use for one Start.
type Plan struct {
	hello *hello
	name  string // whom the origin's certificate and the leaf are for
	sni   bool   // the client said the name
	key   memoryKey
}

// Plan says, before anything is sent, whether a connection that began with
// first can be terminated with its shape kept. first is all that was read of
// the client and starts with a whole ClientHello; it must stay unchanged until
// Start's done is called. host is the name or the address that the client
// means, which counts where the hello names none.
//
// Where it cannot, the plan is nil and why is one of the Why constants: the
// connection is to be passed through. Plan does not block and is safe for
// concurrent use.
func (t *Terminator) Plan(first []byte, host string) (p *Plan, why string) {
	if t.ca == nil {
		return nil, WhyNoAuthority
	}
	h, err := readHello(first)
	if err != nil {
		return nil, WhyMalformed
	}
	if why := h.unfit(); why != "" {
		return nil, why
	}
	p = &Plan{hello: h, name: host, sni: h.has(extServerName)}
	if p.sni {
		seen, status := sniff.ClientHello(first)
		if status != sniff.Complete {
			return nil, WhyMalformed
		}
		p.name = seen.SNI
	} else if addr, err := netip.ParseAddr(host); err == nil {
		p.name = addr.Unmap().WithZone("").String()
	}
	if p.name == "" || !t.ca.Permits(p.name) {
		return nil, WhyName
	}
	p.key = h.key(p.name)
	if why := t.memory.refused(p.key); why != "" {
		return nil, why
	}
	return p, ""
}

// unfit says why a connection that begins with h cannot be terminated, "" if
// it can.
func (h *hello) unfit() string {
	switch {
	case !h.offers(versionTLS13) && !h.offers(versionTLS12):
		return WhyVersion
	case h.resumes():
		return WhyResumption
	}
	for _, e := range h.extensions {
		if !grease(e.id) && !slices.Contains(keptExtensions, e.id) {
			return WhyExtension
		}
	}
	switch {
	case !h.sharesKept(), len(h.compression) != 1 || h.compression[0] != 0,
		h.offers(versionTLS13) && len(h.shares) == 0:
		return WhyShape
	case !h.answerable(versionTLS13) && !h.answerable(versionTLS12):
		return WhySuites
	}
	return ""
}

// resumes reports whether the client wants to go on with a session that it has
// with the origin, of which nothing is known here. Its own sessions with this
// package cannot be resumed, so it never has a ticket from here.
func (h *hello) resumes() bool {
	if h.has(extPreSharedKey) || h.has(extEarlyData) {
		return true
	}
	// A session id alone says nothing: with TLS 1.3 it is there for
	// middleboxes (RFC 8446 §D.4), and some clients send one to every server.
	// Another one is sent in its place, which no origin knows.
	e := h.find(extSessionTicket)
	return e != nil && len(e.body) > 0
}
