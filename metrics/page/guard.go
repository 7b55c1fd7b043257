// SPDX-License-Identifier: Apache-2.0

package page

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// contentPolicy lets the page use its own files and its own address, and nothing
// else. No code is written into a page by other code.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard sets the headers that all answers have, and reports whether the request
// may be answered at all. It answers those that may not.
//
// A foreign page may have its own name lead to our address, and then read our
// answers as its own (DNS rebinding). Such a request has that name in its Host.
// So only names are answered that are nobody else's: literal addresses,
// localhost and what the configuration has. Over TLS any name is: there, a
// browser has seen a certificate that proves it. Scrapes of /metrics do not come
// this way.
//
// What a page of another site asks for cannot be read by it, but could take all
// places of streams: browsers tell (Sec-Fetch-Site), and such requests for data
// are refused.
func (p *Page) guard(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.TLS == nil && !ownHost(r.Host, p.hosts) {
		http.Error(w, "This page is served under localhost, addresses, the host of metrics.listen and the name of the machine only, "+
			"so that no other site can pass for it. /metrics is served under every name.", http.StatusMisdirectedRequest)
		return false
	}
	if site := r.Header.Get("Sec-Fetch-Site"); strings.HasPrefix(r.URL.Path, "/api/") && (site == "cross-site" || site == "same-site") {
		http.Error(w, "Not for pages of another site.", http.StatusForbidden)
		return false
	}
	return true
}

// ownHost reports whether the Host of a request is no name that somebody else
// could own: a literal address, localhost or one of names.
func ownHost(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true // RFC 6761: never looked up
	}
	return host != "" && slices.ContainsFunc(names, func(n string) bool {
		return strings.ToLower(strings.TrimSuffix(n, ".")) == host
	})
}
