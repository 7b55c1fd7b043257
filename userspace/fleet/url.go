// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// URL is where the store is and how to log in there. It is one of
//
//	redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
//	redis-sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../MASTER[/DB]
//	redis-cluster://[USER[:PASSWORD]@]HOST[:PORT],...
//	redis-unix://[USER[:PASSWORD]@]/PATH/OF/SOCKET
//
// where rediss, rediss-sentinel and rediss-cluster stand for the same over TLS.
// A user without a colon is taken for the password, as of the default user.
// Percent signs escape in user and password, as in every URL. Options follow
// after a question mark:
//
//	ca=FILE                certificates of authorities, instead of the system's (PEM)
//	cert=FILE key=FILE     a certificate to log in with
//	server_name=NAME       the name to expect in the server's certificate
//	sentinel_user=USER sentinel_password=PASSWORD   to log in at the sentinels
//	db=N                   as /DB, where the path has another meaning
//
// A URL is printed and encoded without user, password and options. Immutable;
// the zero URL is no place.
type URL struct {
	mode  mode
	tls   bool
	addrs []string // host:port; the path of the socket
	// master is the name under which sentinels know the server.
	master string
	db     int

	// Behind a function, so that even what is printed by reflection, past the
	// methods below, as fields without a capital are, shows an address.
	login func() login

	ca, cert, key, serverName string
}

type login struct{ user, password, sentinelUser, sentinelPassword string }

// mode is how the servers stand to each other.
type mode uint8

const (
	single mode = iota + 1
	sentinel
	cluster
	socket
)

var schemes = map[string]URL{
	"redis":           {mode: single},
	"rediss":          {mode: single, tls: true},
	"redis-sentinel":  {mode: sentinel},
	"rediss-sentinel": {mode: sentinel, tls: true},
	"redis-cluster":   {mode: cluster},
	"rediss-cluster":  {mode: cluster, tls: true},
	"redis-unix":      {mode: socket},
}

// Ports where the servers listen if nobody says otherwise.
const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

// ParseURL reads a URL. Its errors quote nothing of the text: a password with a
// slash or an @ in it makes any part of it a secret.
func ParseURL(text string) (URL, error) {
	fail := func(why string) (URL, error) { return URL{}, fmt.Errorf("redis URL: %s", why) }
	scheme, rest, ok := strings.Cut(text, "://")
	u, known := schemes[scheme]
	if !ok || !known {
		return fail("it begins with none of redis://, rediss://, redis-sentinel://, rediss-sentinel://, " +
			"redis-cluster://, rediss-cluster://, redis-unix://")
	}
	if strings.ContainsFunc(rest, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' }) {
		return fail("blanks and # must be escaped")
	}
	var l login
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		if err := l.read(authority[:at]); err != nil {
			return fail(err.Error())
		}
		authority = authority[at+1:]
	}
	if err := u.options(query, &l); err != nil {
		return fail(err.Error())
	}
	u.login = func() login { return l }
	if u.mode == socket {
		if authority != "" || !slash || path == "" {
			return fail("a socket is written redis-unix:///PATH")
		}
		u.addrs = []string{"/" + path}
		return u, nil
	}
	port := redisPort
	if u.mode == sentinel {
		port = sentinelPort
	}
	for host := range strings.SplitSeq(authority, ",") {
		addr, err := address(host, port)
		if err != nil {
			return fail(err.Error())
		}
		u.addrs = append(u.addrs, addr)
	}
	if u.mode == single && len(u.addrs) > 1 {
		return fail("several servers are a cluster (redis-cluster://) or have sentinels (redis-sentinel://)")
	}
	if u.mode == sentinel {
		u.master, path, _ = strings.Cut(path, "/")
		if !plain(u.master) {
			return fail("sentinels need the name of the master: redis-sentinel://HOST,.../MASTER")
		}
	}
	if path != "" {
		db, err := strconv.ParseUint(path, 10, 16)
		if err != nil {
			return fail("the path is no number of a database")
		}
		u.db = int(db)
	}
	if u.mode == cluster && u.db != 0 {
		return fail("a cluster has no numbered databases")
	}
	return u, nil
}

// read reads user and password.
func (l *login) read(text string) error {
	user, password, both := strings.Cut(text, ":")
	var err1, err2 error
	l.user, err1 = url.PathUnescape(user)
	l.password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("a percent sign in user or password is written %25")
	}
	if !both {
		l.user, l.password = "", l.user
	}
	return nil
}

// options reads what follows the question mark.
func (u *URL) options(query string, l *login) error {
	if query == "" {
		return nil
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, escaped, _ := strings.Cut(pair, "=")
		value, err := url.PathUnescape(escaped)
		if err != nil || value == "" {
			return errors.New("an option is written NAME=VALUE, a percent sign in it %25")
		}
		switch name {
		case "ca":
			u.ca = value
		case "cert":
			u.cert = value
		case "key":
			u.key = value
		case "server_name":
			u.serverName = value
		case "sentinel_user":
			l.sentinelUser = value
		case "sentinel_password":
			l.sentinelPassword = value
		case "db":
			db, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return errors.New("db is no number of a database")
			}
			u.db = int(db)
		default:
			return errors.New("the options are ca, cert, key, server_name, sentinel_user, sentinel_password, db")
		}
	}
	if !u.tls && (u.ca != "" || u.cert != "" || u.key != "" || u.serverName != "") {
		return errors.New("ca, cert, key and server_name are for TLS: rediss://")
	}
	if (u.cert == "") != (u.key == "") {
		return errors.New("cert and key come together")
	}
	if u.mode != sentinel && (l.sentinelUser != "" || l.sentinelPassword != "") {
		return errors.New("sentinel_user and sentinel_password are for redis-sentinel://")
	}
	return nil
}

// address reads HOST[:PORT]. IPv6 addresses stand in brackets.
func address(text, port string) (string, error) {
	host := text
	if inner, ok := strings.CutPrefix(text, "["); ok {
		var rest string
		host, rest, ok = strings.Cut(inner, "]")
		ip, err := netip.ParseAddr(host)
		if !ok || err != nil || !ip.Is6() || rest != "" && rest[0] != ':' {
			return "", errors.New("a server is no [IPV6]:PORT")
		}
		host = "[" + host + "]"
		if rest != "" {
			port = rest[1:]
		}
	} else {
		if before, after, ok := strings.Cut(text, ":"); ok {
			host, port = before, after
		}
		if !plain(host) {
			return "", errors.New("a server is no HOST:PORT")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("a server's port is no number from 1 to 65535")
	}
	return host + ":" + port, nil
}

// plain reports whether text can be a name of a host or a master.
func plain(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// String is the URL without what is secret in it.
func (u URL) String() string {
	if u.mode == 0 {
		return ""
	}
	text := map[mode]string{single: "redis", sentinel: "redis-sentinel", cluster: "redis-cluster", socket: "redis-unix"}[u.mode]
	if u.tls {
		text = "rediss" + strings.TrimPrefix(text, "redis")
	}
	text += "://" + strings.Join(u.addrs, ",")
	if u.mode == sentinel {
		text += "/" + u.master
	}
	if u.db != 0 {
		if u.mode == socket {
			return fmt.Sprintf("%s?db=%d", text, u.db)
		}
		return fmt.Sprintf("%s/%d", text, u.db)
	}
	return text
}

// GoString is String.
func (u URL) GoString() string { return u.String() }

// Format writes String, whatever the verb.
func (u URL) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, u.String()) // fmt has no way to hear of an error
}

// MarshalText is String, for encoders of text and JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue is String.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// clean removes what is secret from a text.
func (u URL) clean(text string) string {
	if u.login == nil {
		return text
	}
	for _, secret := range []string{u.login().password, u.login().sentinelPassword} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return text
}
