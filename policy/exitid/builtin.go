// SPDX-License-Identifier: Apache-2.0

package exitid

import "time"

// builtin is a pattern for the user names of some providers.
type builtin struct {
	name string
	expr string
	// literal is in every user name that expr matches. Looking for it first
	// is much cheaper than trying the expression.
	literal string
	// auto is false for what is too vague to be tried on any user name.
	auto bool
	// syntax describes what is looked for.
	syntax   string
	examples []example
}

// example is a user name as a provider documents it, with the placeholders
// filled in, and what is found in it.
type example struct {
	provider string
	user     string
	session  string
	lifetime time.Duration
	source   string
}

// builtins is in the order in which auto tries them: the keys that others
// could be mistaken for come later. A lifetime is found after its session,
// which is where providers write it.
var builtins = []builtin{
	{
		name:    "dash-sessid",
		expr:    `-sessid(?:_oneip)?-(?P<session>[^-]+)(?:.*?-sesstime-(?P<minutes>[0-9]+))?`,
		literal: "-sessid",
		auto:    true,
		syntax:  "-sessid-ID, lifetime -sesstime-MINUTES",
		examples: []example{
			{"Oxylabs", "customer-acme-cc-DE-sessid-abcd1234-sesstime-7", "abcd1234", 7 * time.Minute,
				"https://developers.oxylabs.io/products/proxies/residential-proxies/session-control"},
			{"Oxylabs", "customer-acme-cc-DE-sessid_oneip-abcd1234", "abcd1234", 0,
				"https://developers.oxylabs.io/products/cn/proxies/residential-proxies/session-control.md"},
			{"Thordata", "user-acme-sessid-a234234-sesstime-15", "a234234", 15 * time.Minute,
				"https://doc.thordata.com/doc/proxies/residential-proxies/session-control"},
			{"922 Proxy", "acme-sessid-abcde12345-sesstime-7", "abcde12345", 7 * time.Minute,
				"https://doc.922proxy.com/doc/data-plan/residential-proxies/dashboard/introduction-overview/session-control"},
		},
	},
	{
		name:    "dash-sessionid",
		expr:    `-sessionid-(?P<session>[^-]+)(?:.*?-sessionlength-(?P<seconds>[0-9]+))?`,
		literal: "-sessionid-",
		auto:    true,
		syntax:  "-sessionid-ID, lifetime -sessionlength-SECONDS",
		examples: []example{
			{"SOAX", "package-1234-country-us-sessionid-rand123456-sessionlength-90", "rand123456", 90 * time.Second,
				"https://helpcenter.soax.com/en/articles/7035059-session-control-for-isp-proxies"},
		},
	},
	{
		name:    "dash-sid",
		expr:    `-sid-(?P<session>[^-]+)`,
		literal: "-sid-",
		auto:    true,
		syntax:  "-sid-ID",
		examples: []example{
			{"NetNut", "acme-res-any-sid-45456", "45456", 0,
				"https://help.netnut.io/netnut-documentation/netnut-documentation-chn/netnut-dai-li/dong-tai-zhu-zhai-dai-li/curl-qing-qiu-can-shu"},
		},
	},
	{
		name:    "dash-session",
		expr:    `-session-(?P<session>[^-]+)(?:.*?-(?:sessionduration|sessionttl|sesstime|lifetime)-(?P<minutes>[0-9]+))?`,
		literal: "-session-",
		auto:    true,
		syntax:  "-session-ID, lifetime -sessionduration-, -sessionttl-, -sesstime- or -lifetime-MINUTES",
		examples: []example{
			{"Bright Data", "brd-customer-hl_1234-zone-residential-session-mystring12345", "mystring12345", 0,
				"https://docs.brightdata.com/api-reference/proxy/rotate_ips.md"},
			{"Decodo (Smartproxy)", "user-acme-country-us-session-a1b2c3-sessionduration-30", "a1b2c3", 30 * time.Minute,
				"https://help.decodo.com/docs/residential-proxy-custom-sticky-sessions.md"},
			{"Massive", "acme-session-37-sessionttl-30", "37", 30 * time.Minute,
				"https://docs.joinmassive.com/residential/sticky-sessions"},
			{"illusory", "acme-country-us-session-checkout1-sesstime-30", "checkout1", 30 * time.Minute,
				"https://www.illusory.io/docs/residential/sessions"},
			{"Ping Network", "acme-session-abc123-lifetime-60", "abc123", time.Hour,
				"https://docs.pingnetwork.io/proxy/residential/sessions.md"},
			{"Geonode", "geonode_acme-session-someRandomString-lifetime-5", "someRandomString", 5 * time.Minute,
				"https://docs.geonode.com/proxy/custom-session_id_and_lifetime"},
			{"Bytio", "zone-ABCDEF-session-mysession1", "mysession1", 0,
				"https://docs.bytio.com/zones/sessions"},
		},
	},
	{
		name:    "comma-session",
		expr:    `(?:^|,)session-(?P<session>[^,]+)`,
		literal: "session-",
		auto:    true,
		syntax:  "session-ID between commas",
		examples: []example{
			{"Apify", "groups-RESIDENTIAL,session-rand123456,country-US", "rand123456", 0,
				"https://docs.apify.com/platform/proxy/usage"},
			{"Apify", "session-rand123456", "rand123456", 0,
				"https://docs.apify.com/platform/proxy/usage"},
		},
	},
	{
		name:    "semicolon-sessid",
		expr:    `(?:;|__)sess(?:id|ion)\.(?P<session>[^;]+)(?:.*?;sessttl\.(?P<minutes>[0-9]+))?`,
		literal: "sess",
		auto:    true,
		syntax:  ";sessid.ID or ;session.ID, lifetime ;sessttl.MINUTES",
		examples: []example{
			{"DataImpulse", "acme__cr.au;sessid.123", "123", 0,
				"https://docs.dataimpulse.com/proxies/parameters/session-id"},
			{"DataImpulse", "acme__sessid.123;sessttl.60", "123", time.Hour,
				"https://docs.dataimpulse.com/proxies/parameters/session-interval"},
		},
	},
	{
		name:    "dot-session",
		expr:    `\.(?:session_number|sticky_session)=(?P<session>[^.]+)`,
		literal: "=",
		auto:    true,
		syntax:  ".session_number=ID or .sticky_session=ID",
		examples: []example{
			{"ScraperAPI", "scraperapi.session_number=123", "123", 0,
				"https://docs.scraperapi.com/control-and-optimization/sticky-sessions"},
			{"ScrapeOps", "scrapeops.country=us.sticky_session=7", "7", 0,
				"https://scrapeops.io/docs/residential-mobile-proxy-aggregator/advanced-functionality/sticky-sessions"},
		},
	},
	{
		name:    "plus-session",
		expr:    `\+session=(?P<session>[^+]+)`,
		literal: "+session=",
		auto:    true,
		syntax:  "+session=ID",
		examples: []example{
			{"WebScrapingAPI", "username=acme+country=us+session=123", "123", 0,
				"https://docs.webscrapingapi.com/residential-proxies/options"},
		},
	},
	{
		name:    "underscore-session",
		expr:    `_session-(?P<session>[^_]+)(?:.*?_lifetime-(?P<lifetime>[0-9]+[smhd]))?`,
		literal: "_session-",
		auto:    true,
		syntax:  "_session-ID, lifetime _lifetime-10m; only where it is in the user name, not in the password",
		examples: []example{
			{"the syntax of IPRoyal", "acme_country-br_session-sgn34f3e_lifetime-10m", "sgn34f3e", 10 * time.Minute,
				"https://docs.iproyal.com/proxies/residential/proxy/rotation"},
		},
	},
	{
		name:    "last-number",
		expr:    `-(?P<session>[0-9]+)$`,
		literal: "-",
		syntax:  "-NUMBER at the end",
		examples: []example{
			{"Webshare", "acme-us-1234", "1234", 0,
				"https://apidocs.webshare.io/proxy-connection"},
		},
	},
}

// autoName is the pattern that tries the others.
const autoName = "auto"
