// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/exitid"
)

// exits reads the exits. What shares the lanes of another names one that
// stands in the list, too, before or behind it.
func (v value) exits() []policy.Exit {
	var exits []policy.Exit
	type reference struct {
		v    value
		exit int
	}
	var shared []reference
	names := map[string]int{}
	identities := map[string]string{}
	all := v.list("[{name: wg0, interface: wg0}]", "", func(v value) {
		e, refs, ok := v.exit()
		if e.Name == "" {
			v.r.exits.unnamed = true
		}
		v.r.exits.names[e.Name] = true
		if !ok {
			return
		}
		if _, taken := names[e.Name]; taken {
			v.Reject("the name %s is taken by an exit above; choose another", e.Name)
			return
		}
		names[e.Name] = len(exits)
		if other, taken := claim(identities, &e); taken {
			v.Reject("is the same exit as %s above, which always fits first; remove one", other)
			return
		}
		if refs.sameAs != nil {
			shared = append(shared, reference{*refs.sameAs, len(exits)})
		}
		if refs.user != nil {
			v.r.exits.users[e.Name] = *refs.user
		}
		exits = append(exits, e)
	})
	v.r.exits.unnamed = v.r.exits.unnamed || !all
	for _, r := range shared {
		e := &exits[r.exit]
		switch other, ok := names[e.SameAs]; {
		case e.SameAs == e.Name:
			r.v.Reject("names the exit itself; remove it")
		case !ok:
			r.v.Reject("no exit is called %s; write the name of one in this list", strict.Clip(e.SameAs))
		case exits[other].SameAs != "":
			r.v.Reject("%s shares the lanes of %s itself; write %s", e.SameAs, exits[other].SameAs, exits[other].SameAs)
		case (exits[other].Proxy == nil) != (e.Proxy == nil):
			r.v.Reject("%s is no exit of the same kind; a proxy shares lanes with a proxy, and a local exit with a local one", e.SameAs)
		}
	}
	return exits
}

// maxPorts bounds the ports of one proxy, each of which is an exit.
const maxPorts = 10_000

// claim notes what the exit is, unless an exit above is the same. Of exits at
// one endpoint clients have the first; the others are for pools, and differ by
// what egressd logs in with.
func claim(identities map[string]string, e *policy.Exit) (other string, taken bool) {
	plain := identitiesOf(e)
	own := plain
	if e.Proxy != nil && e.Proxy.User != "" {
		own = make([]string, len(plain))
		for i, identity := range plain {
			own[i] = identity + " as " + e.Proxy.User
		}
	}
	for _, identity := range own {
		if other, taken := identities[identity]; taken {
			return other, true
		}
	}
	for i, identity := range plain {
		identities[own[i]] = e.Name
		if _, taken := identities[identity]; !taken {
			identities[identity] = e.Name
		}
	}
	return "", false
}

// identitiesOf are texts that say what the exit is.
func identitiesOf(e *policy.Exit) []string {
	switch {
	case e.Proxy != nil:
		all := make([]string, 0, int(e.Proxy.Last)-int(e.Proxy.First)+1)
		for port := int(e.Proxy.First); port <= int(e.Proxy.Last); port++ {
			all = append(all, fmt.Sprintf("proxy %s %d", e.Proxy.Host, port))
		}
		return all
	case e.Interface != "":
		return []string{"interface " + e.Interface}
	case e.Source.IsValid():
		return []string{"source " + e.Source.String()}
	case e.UIDs.Set:
		return []string{fmt.Sprintf("uid %d-%d", e.UIDs.First, e.UIDs.Last)}
	}
	return []string{fmt.Sprintf("mark %d", e.Mark)}
}

// references are where an exit says what can only be judged when all are read;
// nil where it does not.
type references struct{ sameAs, user *value }

// exit reads one exit. Its names and its identity are read independently, so
// that one run shows every error.
func (v value) exit() (e policy.Exit, refs references, ok bool) {
	var identities []string
	var proxied, rebind, password *value // where a key was given that only some exits have
	var p policy.Proxy
	before := len(v.r.Errs)
	ok = v.mapping(
		field{"name", func(v value) { e.Name = v.exitName() }},
		field{"interface", func(v value) { identities = append(identities, "interface"); e.Interface = v.device() }},
		field{"source", func(v value) { identities = append(identities, "source"); e.Source = v.source() }},
		field{"mark", func(v value) { identities = append(identities, "mark"); e.Mark = v.mark() }},
		field{"uid", func(v value) { identities = append(identities, "uid"); e.UIDs = v.uids() }},
		field{"proxy", func(v value) { identities = append(identities, "proxy"); v.proxy(&p) }},
		field{"session", func(v value) { proxied = &v; p.Session = v.session() }},
		field{"rotating", func(v value) { proxied = &v; p.Rotating, _ = v.boolean() }},
		field{"lifetime", func(v value) { proxied = &v; p.Lifetime, _ = v.duration(time.Second, 31*24*time.Hour) }},
		field{"user", func(v value) { proxied, refs.user = &v, &v; p.User = v.user() }},
		field{"password_file", func(v value) { proxied, password = &v, &v; p.Password = v.passwordFile() }},
		field{"rebind", func(v value) { rebind = &v; e.Rebind, _ = v.boolean() }},
		field{"same_as", func(v value) { refs.sameAs = &v; e.SameAs, _ = v.name() }},
		field{"price", func(v value) {
			e.Price, _ = v.number("a price of 10^9 bytes from 0 to 1000000", func(x float64) bool { return 0 <= x && x <= 1e6 })
		}},
	)
	if !ok || len(v.r.Errs) > before {
		return e, refs, false
	}
	switch {
	case e.Name == "":
		v.Reject("name is missing; give the exit one, as in name: wg0")
	case len(identities) == 0:
		v.Reject("nothing says what uses this exit; add interface, source, mark, uid or proxy")
	case len(identities) > 1:
		v.Reject("%s exclude each other; keep one, or make %d exits", strict.Series(identities, "and"), len(identities))
	case proxied != nil && identities[0] != "proxy":
		proxied.Reject("is of an exit that is a proxy; remove it, or write proxy: HOST:PORT")
	case rebind != nil && identities[0] != "interface":
		rebind.Reject("is of an exit that is a device; remove it, or write interface: NAME")
	case password != nil && p.User == "":
		password.Reject("is of a user; add the name, as in user: customer-7")
	default:
		if identities[0] == "proxy" {
			e.Proxy = &p
		}
		return e, refs, true
	}
	return e, refs, false
}

func (v value) exitName() string {
	s, ok := v.name()
	if ok && s == policy.DirectExit {
		v.Reject("%s is the exit that nothing else names; choose another name", s)
	}
	return s
}

// proxy reads HOST:PORT, or HOST:FIRST-LAST where each port is an exit.
func (v value) proxy(p *policy.Proxy) {
	s, ok := v.text("gw.proxy.example:8000")
	if !ok {
		return
	}
	colon := strings.LastIndexByte(s, ':')
	host, ports := s[:max(colon, 0)], s[colon+1:]
	first, last, ranged := strings.Cut(ports, "-")
	if !ranged {
		last = first
	}
	low, err1 := strconv.ParseUint(first, 10, 16)
	high, err2 := strconv.ParseUint(last, 10, 16)
	pattern, err := parseHost(host)
	switch {
	case strings.Contains(s, "://"):
		v.Reject("%q is a URL; write the host and the port alone, as in gw.proxy.example:8000", strict.Clip(s))
	case strings.Contains(s, "@"):
		v.Reject("holds a user name or a password, which do not belong here; write the host and the port alone")
	case colon < 0 || err1 != nil || err2 != nil || low == 0 || !isDigits(first) || !isDigits(last):
		v.Reject("%q has no port; write it as gw.proxy.example:8000, or 10001-10100 where each port is an exit", strict.Clip(s))
	case err != nil || pattern.Name == "":
		v.Reject("%q is no host and port of a proxy; write it as gw.proxy.example:8000", strict.Clip(s))
	case low > high || high-low >= maxPorts:
		v.Reject("%q is no range of at most %d ports; write it as 10001-10100", strict.Clip(ports), maxPorts)
	default:
		p.Host, p.First, p.Last, p.PerPort = pattern.Name, uint16(low), uint16(high), ranged
	}
}

// session reads what tells sessions apart by the user name.
func (v value) session() *exitid.Pattern {
	s, ok := v.text(`user-(?P<session>\w+)`)
	if !ok {
		return nil
	}
	p, err := exitid.Compile(s)
	if err != nil {
		v.Reject("%v", err)
	}
	return p
}

// maxUIDs bounds the users of one exit.
const maxUIDs = 4096

// uids reads a user id or a range of them, both ends included.
func (v value) uids() policy.UIDRange {
	s, ok := v.scalar("a user id, as in 1000 or 1000-1999")
	if !ok {
		return policy.UIDRange{}
	}
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	low, err1 := strconv.ParseUint(first, 10, 32)
	high, err2 := strconv.ParseUint(last, 10, 32)
	switch {
	case err1 != nil || err2 != nil || leadingZero(first) || leadingZero(last) || high == 1<<32-1:
		v.Reject("%q is no user id; write it as 1000, or 1000-1999 for several", strict.Clip(s))
	case low > high || high-low >= maxUIDs:
		v.Reject("%q is no range of at most %d user ids; write it as 1000-1999", strict.Clip(s), maxUIDs)
	default:
		return policy.UIDRange{First: uint32(low), Last: uint32(high), Set: true}
	}
	return policy.UIDRange{}
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
		v.Reject("%q is no name of a network device; see ip link", strict.Clip(s))
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
		v.Reject("%q is no address; write one that this host has, as in 203.0.113.7", strict.Clip(s))
	case a.Zone() != "":
		v.Reject("%q names a zone; write the address alone", strict.Clip(s))
	case a.IsUnspecified() || a.IsMulticast():
		v.Reject("%q is no address that a connection can come from; write one that this host has", strict.Clip(s))
	default:
		return a
	}
	return netip.Addr{}
}

func (v value) mark() uint32 {
	s := v.Raw()
	hex, isHex := strings.CutPrefix(s, "0x")
	base := 10
	if isHex {
		s, base = hex, 16
	}
	n, err := strconv.ParseUint(s, base, 32)
	if err != nil || n == 0 || !isHex && leadingZero(s) || v.Tag() != "!!int" {
		v.Reject("must be a number from 1 to 0xffffffff%s; write it as 0x2a or 42", v.butIs())
		return 0
	}
	return uint32(n)
}
