// SPDX-License-Identifier: Apache-2.0

// Package redisurl reads where a Redis server is, or several that belong
// together, and how to log in there. It reads no file and connects to nothing.
package redisurl

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
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
	Mode  Mode // 0 of the zero URL
	TLS   bool
	Addrs []string // host:port; the path of the socket
	// Master is the name under which sentinels know the server.
	Master string
	DB     int // number of the database

	// Files with certificates of authorities, a certificate to log in with and its
	// key, and the name to expect of the server; "" where the URL does not say.
	CA, Cert, Key, ServerName string

	// Behind a function, so that even what is printed by reflection, past the
	// methods below, as fields without a capital are, shows an address.
	login func() Login
}

// Login is what to log in with, at the server and at sentinels: secrets.
type Login struct{ User, Password, SentinelUser, SentinelPassword string }

// Login is what the URL says of logging in. It is never to be shown.
func (u URL) Login() Login {
	if u.login == nil {
		return Login{}
	}
	return u.login()
}

// Mode is how the servers stand to each other.
type Mode uint8

// The modes.
const (
	Single   Mode = iota + 1 // one server
	Sentinel                 // servers of which sentinels know the master
	Cluster                  // servers that share the keys
	Socket                   // one server, by a socket of this host
)

var schemes = map[string]URL{
	"redis":           {Mode: Single},
	"rediss":          {Mode: Single, TLS: true},
	"redis-sentinel":  {Mode: Sentinel},
	"rediss-sentinel": {Mode: Sentinel, TLS: true},
	"redis-cluster":   {Mode: Cluster},
	"rediss-cluster":  {Mode: Cluster, TLS: true},
	"redis-unix":      {Mode: Socket},
}

// Ports where the servers listen if nobody says otherwise.
const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

// Parse reads a URL. Its errors quote nothing of the text: a password with a
// slash or an @ in it makes any part of it a secret.
func Parse(text string) (URL, error) {
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
	var l Login
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
	u.login = func() Login { return l }
	if u.Mode == Socket {
		if authority != "" || !slash || path == "" {
			return fail("a socket is written redis-unix:///PATH")
		}
		u.Addrs = []string{"/" + path}
		return u, nil
	}
	port := redisPort
	if u.Mode == Sentinel {
		port = sentinelPort
	}
	for host := range strings.SplitSeq(authority, ",") {
		addr, err := address(host, port)
		if err != nil {
			return fail(err.Error())
		}
		u.Addrs = append(u.Addrs, addr)
	}
	if u.Mode == Single && len(u.Addrs) > 1 {
		return fail("several servers are a cluster (redis-cluster://) or have sentinels (redis-sentinel://)")
	}
	if u.Mode == Sentinel {
		u.Master, path, _ = strings.Cut(path, "/")
		if !plain(u.Master) {
			return fail("sentinels need the name of the master: redis-sentinel://HOST,.../MASTER")
		}
	}
	if path != "" {
		db, err := strconv.ParseUint(path, 10, 16)
		if err != nil {
			return fail("the path is no number of a database")
		}
		u.DB = int(db)
	}
	if u.Mode == Cluster && u.DB != 0 {
		return fail("a cluster has no numbered databases")
	}
	return u, nil
}

// read reads user and password.
func (l *Login) read(text string) error {
	user, password, both := strings.Cut(text, ":")
	var err1, err2 error
	l.User, err1 = url.PathUnescape(user)
	l.Password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("a percent sign in user or password is written %25")
	}
	if !both {
		l.User, l.Password = "", l.User
	}
	return nil
}

// options reads what follows the question mark.
func (u *URL) options(query string, l *Login) error {
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
			u.CA = value
		case "cert":
			u.Cert = value
		case "key":
			u.Key = value
		case "server_name":
			u.ServerName = value
		case "sentinel_user":
			l.SentinelUser = value
		case "sentinel_password":
			l.SentinelPassword = value
		case "db":
			db, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return errors.New("db is no number of a database")
			}
			u.DB = int(db)
		default:
			return errors.New("the options are ca, cert, key, server_name, sentinel_user, sentinel_password, db")
		}
	}
	if !u.TLS && (u.CA != "" || u.Cert != "" || u.Key != "" || u.ServerName != "") {
		return errors.New("ca, cert, key and server_name are for TLS: rediss://")
	}
	if (u.Cert == "") != (u.Key == "") {
		return errors.New("cert and key come together")
	}
	if u.Mode != Sentinel && (l.SentinelUser != "" || l.SentinelPassword != "") {
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
	if u.Mode == 0 {
		return ""
	}
	text := map[Mode]string{Single: "redis", Sentinel: "redis-sentinel", Cluster: "redis-cluster", Socket: "redis-unix"}[u.Mode]
	if u.TLS {
		text = "rediss" + strings.TrimPrefix(text, "redis")
	}
	text += "://" + strings.Join(u.Addrs, ",")
	if u.Mode == Sentinel {
		text += "/" + u.Master
	}
	if u.DB != 0 {
		if u.Mode == Socket {
			return fmt.Sprintf("%s?db=%d", text, u.DB)
		}
		return fmt.Sprintf("%s/%d", text, u.DB)
	}
	return text
}

// Same reports whether v is the same place with the same login.
func (u URL) Same(v URL) bool {
	return u.Mode == v.Mode && u.TLS == v.TLS && slices.Equal(u.Addrs, v.Addrs) && u.Master == v.Master && u.DB == v.DB &&
		u.CA == v.CA && u.Cert == v.Cert && u.Key == v.Key && u.ServerName == v.ServerName && u.Login() == v.Login()
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

// Clean removes what is secret in u from a text.
func (u URL) Clean(text string) string {
	l := u.Login()
	for _, secret := range []string{l.Password, l.SentinelPassword} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return text
}
