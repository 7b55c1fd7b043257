// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// policy reads the whole file into p, which holds the defaults.
func (v value) policy(p *policy.Policy) {
	if !v.sound() {
		return
	}
	var budgets *value
	v.mapping(
		field{"scope", func(v value) { v.scope(&p.Scope) }},
		field{"exits", func(v value) { p.Exits = v.exits() }},
		field{"pools", unsupported},
		field{"dialects", func(v value) { p.Dialects = v.dialects() }},
		field{"budgets", func(v value) { budgets = &v }},
		field{"tls", value.tls},
		field{"quic", value.quic},
		field{"fleet", unsupported},
		field{"metrics", func(v value) { v.metrics(&p.Metrics) }},
		field{"admin", func(v value) { v.admin(&p.Admin) }},
	)
	if budgets != nil { // which name dialects, wherever those are
		p.Budgets = budgets.budgets()
	}
}

func (v value) scope(s *policy.Scope) {
	v.mapping(
		field{"cgroups", func(v value) {
			if paths, ok := v.cgroups("leave it out to shape every process"); ok {
				s.Cgroups = paths
			}
		}},
		field{"exclude", func(v value) { s.Exclude, _ = v.cgroups("leave it out to exclude none") }},
	)
}

// cgroups reads a list of cgroup v2 paths, each from the root of the
// hierarchy, with or without a slash in front.
func (v value) cgroups(empty string) (paths []string, ok bool) {
	seen := map[string]bool{}
	ok = v.list("[/, system.slice/crawler.service]", empty, func(v value) {
		s, ok := v.text("system.slice/crawler.service")
		if !ok {
			return
		}
		clean := path.Clean("/" + s)
		switch {
		case s == "" || strings.ContainsFunc(s, isControl) || strings.Contains("/"+s+"/", "/../"):
			v.reject("%q is no cgroup path; write it from the root of the hierarchy, as in /system.slice/crawler.service", clip(s))
		case clean == "/sys/fs/cgroup" || strings.HasPrefix(clean, "/sys/fs/cgroup/"):
			v.reject("%q is a file name; write the path from the root of the hierarchy, as in /system.slice/crawler.service", clip(s))
		case strings.HasSuffix(v.listPath(), ".exclude") && clean == "/":
			v.reject("excludes every process; name a cgroup below the root")
		case once(v, seen, clean):
			paths = append(paths, clean)
		}
	})
	return paths, ok
}

// listPath is the path of the list that the value is an item of.
func (v value) listPath() string { return v.path[:strings.LastIndexByte(v.path, '[')] }

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func (v value) exits() []policy.Exit {
	var exits []policy.Exit
	names := map[string]bool{}
	identities := map[policy.Exit]string{}
	v.list("[{name: wg0, interface: wg0}]", "", func(v value) {
		e, ok := v.exit()
		if !ok {
			return
		}
		if names[e.Name] {
			v.reject("the name %s is taken by an exit above; choose another", e.Name)
			return
		}
		names[e.Name] = true
		identity := e
		identity.Name = ""
		if other, taken := identities[identity]; taken {
			v.reject("is the same exit as %s above, which always fits first; remove one", other)
			return
		}
		identities[identity] = e.Name
		exits = append(exits, e)
	})
	return exits
}

// exit reads one exit. Its names and its identity are read independently, so
// that one run shows every error.
func (v value) exit() (e policy.Exit, ok bool) {
	identities, before := 0, len(v.r.errs)
	ok = v.mapping(
		field{"name", func(v value) { e.Name = v.exitName() }},
		field{"interface", func(v value) { identities++; e.Interface = v.device() }},
		field{"source", func(v value) { identities++; e.Source = v.source() }},
		field{"mark", func(v value) { identities++; e.Mark = v.mark() }},
		field{"proxy", func(v value) { identities++; unsupported(v) }},
		field{"session", unsupported},
		field{"rotating", unsupported},
	)
	if !ok || len(v.r.errs) > before {
		return e, false
	}
	switch {
	case e.Name == "":
		v.reject("name is missing; give the exit one, as in name: wg0")
	case identities == 0:
		v.reject("nothing says which sockets use this exit; add interface, source or mark")
	case identities > 1:
		v.reject("interface, source and mark exclude each other; keep one, or make two exits")
	default:
		return e, true
	}
	return e, false
}

func (v value) exitName() string {
	s, ok := v.name()
	if ok && s == policy.DirectExit {
		v.reject("%s is the exit that nothing else names; choose another name", s)
	}
	return s
}

// maxName bounds the names of budgets and exits: they become metric labels
// and parts of lane ids.
const maxName = 64

// name reads the name of a budget or an exit.
func (v value) name() (string, bool) {
	s, ok := v.text("store")
	if !ok {
		return "", false
	}
	if !validName(s) {
		v.reject("%q is no name; use 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", clip(s), maxName)
		return "", false
	}
	return s, true
}

func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && (i == 0 || strings.IndexByte("._-", s[i]) < 0) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// maxDevice is IFNAMSIZ without the zero at the end.
const maxDevice = 15

func (v value) device() string {
	s, ok := v.text("wg0")
	if !ok {
		return ""
	}
	// The kernel's own rule: dev_valid_name in net/core/dev.c.
	if s == "" || len(s) > maxDevice || s == "." || s == ".." || strings.ContainsAny(s, "/: \t\n\v\f\r") {
		v.reject("%q is no name of a network device; see ip link", clip(s))
		return ""
	}
	return s
}

func (v value) source() netip.Addr {
	s, ok := v.text("203.0.113.7")
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	switch a = a.Unmap(); {
	case err != nil:
		v.reject("%q is no address; write one that this host has, as in 203.0.113.7", clip(s))
	case a.Zone() != "":
		v.reject("%q names a zone; write the address alone", clip(s))
	case a.IsUnspecified() || a.IsMulticast():
		v.reject("%q is no address that a connection can come from; write one that this host has", clip(s))
	default:
		return a
	}
	return netip.Addr{}
}

func (v value) mark() uint32 {
	s := v.node.Value
	hex, isHex := strings.CutPrefix(s, "0x")
	base := 10
	if isHex {
		s, base = hex, 16
	}
	n, err := strconv.ParseUint(s, base, 32)
	if err != nil || n == 0 || !isHex && leadingZero(s) || v.node.ShortTag() != "!!int" {
		v.reject("must be a number from 1 to 0xffffffff%s; write it as 0x2a or 42", v.butIs())
		return 0
	}
	return uint32(n)
}

func (v value) tls() {
	v.mapping(field{"mode", func(v value) {
		mode, ok := v.word("passthrough", "observe", "terminate")
		if ok && mode != "passthrough" {
			v.notYet(mode, "use passthrough")
		}
	}})
}

func (v value) quic() {
	if s, ok := v.word("allow", "refuse"); ok && s == "refuse" {
		v.notYet(s, "use allow")
	}
}

func (v value) metrics(m *policy.Metrics) {
	v.mapping(field{"listen", func(v value) {
		s, ok := v.text(DefaultListen)
		switch {
		case !ok:
		case s == "" || s == "off":
			m.Listen = ""
		case !validListen(s):
			v.reject("%q is no host:port; write it as %s, or off for none", clip(s), DefaultListen)
		default:
			m.Listen = s
		}
	}})
}

// validListen reports whether s is host:port with a port number. The host may
// be empty (every address); port 0 lets the kernel choose.
func validListen(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || !isDigits(port) {
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return true
	}
	return validHostName(strings.ToLower(host))
}

// maxSocket is the room in sockaddr_un without the zero at the end.
const maxSocket = 107

func (v value) admin(a *policy.Admin) {
	v.mapping(field{"socket", func(v value) {
		s, ok := v.text(DefaultSocket)
		switch {
		case !ok:
		case s == "" || s == "off":
			a.Socket = ""
		case !path.IsAbs(s) || strings.HasSuffix(s, "/") || strings.ContainsFunc(s, isControl):
			v.reject("%q is no absolute file name; write it as %s, or off for none", clip(s), DefaultSocket)
		case len(s) > maxSocket:
			v.reject("is longer than the %d bytes that a unix socket allows; choose a shorter path", maxSocket)
		default:
			a.Socket = path.Clean(s)
		}
	}})
}
