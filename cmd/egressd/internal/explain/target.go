// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/userspace/sniff"
)

// target is a request as the proxy would see it.
type target struct {
	host   string // canonical
	port   uint16
	path   string // with its query
	method string
	tls    bool
	text   string // without user and password
}

var errURL = errors.New("write it as in https://api.example.com/v1/items")

// parse reads what is asked. A scheme may be left out: then it is HTTPS, as
// most of what people paste.
func parse(q admin.Question) (t target, err error) {
	text := q.URL
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	// It may hold a password, so errors do not quote it.
	u, err := url.Parse(text)
	if err != nil {
		return t, fmt.Errorf("the URL cannot be read: %w", errURL)
	}
	switch strings.ToLower(u.Scheme) {
	case "http":
		t.port = 80
	case "https":
		t.port, t.tls = 443, true
	default:
		return t, fmt.Errorf("the URL's scheme %s is neither http nor https", u.Scheme)
	}
	authority := u.Hostname()
	if strings.Contains(authority, ":") {
		authority = net.JoinHostPort(authority, strconv.Itoa(int(t.port)))
	}
	host, _, ok := sniff.CanonicalHost(authority)
	if !ok || host == "" {
		return t, fmt.Errorf("the URL names no host: %w", errURL)
	}
	t.host = host
	if text := u.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return t, fmt.Errorf("the URL's port %s is none", text)
		}
		t.port = uint16(n)
	}
	t.path = u.EscapedPath()
	if t.path == "" {
		t.path = "/"
	}
	if u.RawQuery != "" {
		t.path += "?" + u.RawQuery
	}
	u.User, u.Fragment = nil, ""
	t.text = u.String()
	t.method = q.Method
	if t.method == "" {
		t.method = "GET"
	}
	for _, c := range t.method {
		// RFC 9110 section 5.6.2 allows more, and nobody has such a method.
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return t, fmt.Errorf("method %q: write it in capitals, as in POST", q.Method)
		}
	}
	return t, nil
}

// site is the domain that was registered for a host; an address and a public
// suffix are their own.
func site(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	if name, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return name
	}
	return host
}
