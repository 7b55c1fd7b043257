// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"golang.org/x/net/publicsuffix"
)

// siteOf is the domain that was registered for a host: the part of its name
// above a public suffix, of those that registries and operators of shared
// domains keep. An address, and a suffix itself, are their own. Empty where no
// budget asks.
func (c *conn) siteOf(host string) string {
	if !c.l.p.cfg.Engine.WantsSite() {
		return ""
	}
	if c.siteHost != host {
		c.siteHost, c.site = host, site(host)
	}
	return c.site
}

func site(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	if name, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return name
	}
	return host
}
