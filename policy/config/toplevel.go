// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// policy reads the whole file into p, which holds the defaults.
func (v value) policy(p *policy.Policy) {
	if !v.Sound() {
		return
	}
	var budgets, pools, together *value
	v.mapping(
		field{"scope", func(v value) { v.scope(&p.Scope) }},
		field{"exits", func(v value) { p.Exits = v.exits() }},
		field{"pools", func(v value) { pools = &v }},
		field{"dialects", func(v value) { p.Dialects = v.dialects() }},
		field{"budgets", func(v value) { budgets = &v }},
		field{"tls", func(v value) { v.tls(&p.TLS) }},
		field{"quic", func(v value) { v.quic(&p.QUIC) }},
		field{"qdisc", func(v value) { v.qdisc(&p.Qdisc) }},
		field{"fleet", func(v value) { together = &v }},
		field{"metrics", func(v value) { v.metrics(&p.Metrics) }},
		field{"events", func(v value) { v.events(&p.Events) }},
		field{"admin", func(v value) { v.admin(&p.Admin) }},
	)
	if together != nil { // which names exits
		p.Fleet = together.fleet(p.Exits)
		v.r.fleet, v.r.noFleet = p.Fleet, p.Fleet == nil
	}
	if budgets != nil { // which name dialects, wherever those are
		p.Budgets = budgets.budgets()
	}
	if pools != nil { // which name exits, and keep off where the metrics are
		p.Pools = pools.pools(p)
	}
	v.r.unusedUsers(p)
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
			v.Reject("%q is no cgroup path; write it from the root of the hierarchy, as in /system.slice/crawler.service", strict.Clip(s))
		case clean == "/sys/fs/cgroup" || strings.HasPrefix(clean, "/sys/fs/cgroup/"):
			v.Reject("%q is a file name; write the path from the root of the hierarchy, as in /system.slice/crawler.service", strict.Clip(s))
		case strings.HasSuffix(v.listPath(), ".exclude") && clean == "/":
			v.Reject("excludes every process; name a cgroup below the root")
		case once(v, seen, clean):
			paths = append(paths, clean)
		}
	})
	return paths, ok
}

// listPath is the path of the list that the value is an item of.
func (v value) listPath() string { return v.Path()[:strings.LastIndexByte(v.Path(), '[')] }

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// maxName bounds the names of budgets, exits and pools: they become metric labels
// and parts of lane ids.
const maxName = 64

// name reads the name of a budget, an exit or a pool.
func (v value) name() (string, bool) {
	s, ok := v.text("store")
	if !ok {
		return "", false
	}
	if !validName(s) {
		v.Reject("%q is no name; use 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", strict.Clip(s), maxName)
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

func (v value) metrics(m *policy.Metrics) {
	v.mapping(
		field{"listen", func(v value) {
			s, ok := v.text(DefaultListen)
			switch {
			case !ok:
			case s == "" || s == "off":
				m.Listen = ""
			case !validListen(s):
				v.Reject("%q is no host:port; write it as %s, or off for none", strict.Clip(s), DefaultListen)
			default:
				m.Listen = s
			}
		}},
		field{"web_config_file", func(v value) {
			if s, ok := v.text("/etc/egressd/web.yml"); ok && s != "" {
				m.WebConfigFile, _ = v.fileName(s, "/etc/egressd/web.yml")
			}
		}},
	)
}

func (v value) events(e *policy.Events) {
	const example = "/var/log/egressd/events.jsonl"
	v.mapping(field{"log", func(v value) {
		s, ok := v.text(example)
		switch {
		case !ok:
		case s == policy.EventsAuto, s == policy.EventsOff, s == policy.EventsStderr, s == policy.EventsJournald:
			e.Log = s
		default:
			if name, ok := v.fileName(s, example+", or auto, off, stderr or journald"); ok {
				e.Log = name
			}
		}
	}})
}

// fileName reads an absolute file name.
func (v value) fileName(s, example string) (string, bool) {
	if !path.IsAbs(s) || strings.HasSuffix(s, "/") || strings.ContainsFunc(s, isControl) {
		v.Reject("%q is no absolute file name; write it as %s", strict.Clip(s), example)
		return "", false
	}
	return path.Clean(s), true
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
	return policy.IsHostName(strings.ToLower(host))
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
			v.Reject("%q is no absolute file name; write it as %s, or off for none", strict.Clip(s), DefaultSocket)
		case len(s) > maxSocket:
			v.Reject("is longer than the %d bytes that a unix socket allows; choose a shorter path", maxSocket)
		default:
			a.Socket = path.Clean(s)
		}
	}})
}
