// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/egressd/egressd/policy"
)

const poolExits = `exits:
  - {name: E-017, proxy: "gw.proxy.example:8000", session: dash-session, user: customer-7-session-a1}
  - {name: E-018, proxy: "gw.proxy.example:8000", session: dash-session, user: customer-7-session-a2}
  - {name: ports, proxy: "isp.proxy.example:10001-10003", rotating: true, same_as: E-017}
`

func TestPools(t *testing.T) {
	p := mustParse(t, poolExits+`
metrics: {listen: off}
pools:
  - {name: residential, listen: 127.0.0.77:3128, exits: [E-017, {exit: E-018, weight: 2}, {exit: ports, weight: 1000}]}
  - {name: six, listen: "[::1]:9477", exits: [{exit: E-018}], sticky: client}
  - {name: mapped, listen: "[::ffff:127.255.255.255]:1", exits: [E-017], sticky: session}
  - {name: another, listen: 127.0.0.77:3129, exits: [E-017], sticky: destination}
  - {name: plain, listen: 127.0.0.78:3128, exits: [E-017], sticky: none}
`)
	e := func(i int) *policy.Exit { return &p.Exits[i] }
	member := policy.NewMember
	want := []*policy.Pool{
		{Name: "residential", Listen: netip.MustParseAddrPort("127.0.0.77:3128"), Members: []policy.Member{
			member(e(0), 8000, 1), member(e(1), 8000, 2), member(e(2), 10001, 1000), member(e(2), 10002, 1000), member(e(2), 10003, 1000),
		}},
		{Name: "six", Listen: netip.MustParseAddrPort("[::1]:9477"), Members: []policy.Member{member(e(1), 8000, 1)}, Sticky: policy.StickyClient},
		{Name: "mapped", Listen: netip.MustParseAddrPort("127.255.255.255:1"), Members: []policy.Member{member(e(0), 8000, 1)}, Sticky: policy.StickySession},
		{Name: "another", Listen: netip.MustParseAddrPort("127.0.0.77:3129"), Members: []policy.Member{member(e(0), 8000, 1)}, Sticky: policy.StickyDestination},
		{Name: "plain", Listen: netip.MustParseAddrPort("127.0.0.78:3128"), Members: []policy.Member{member(e(0), 8000, 1)}},
	}
	if !reflect.DeepEqual(p.Pools, want) {
		t.Errorf("got %+v, want %+v", p.Pools, want)
	}
	var exits []string
	for i := range p.Pools[0].Members {
		m := &p.Pools[0].Members[i]
		if !slices.ContainsFunc(p.Exits, func(e policy.Exit) bool { return e.Name == m.Exit.Name }) || m.Exit != e(min(i, 2)) {
			t.Errorf("%s is no exit of the policy itself", m)
		}
		exits = append(exits, m.String()+" = "+m.Through().Exit)
	}
	if want := []string{"E-017 = E-017/a1", "E-018 = E-018/a2", "ports/10001 = E-017/10001", "ports/10002 = E-017/10002", "ports/10003 = E-017/10003"}; !slices.Equal(exits, want) {
		t.Errorf("got %v, want %v", exits, want)
	}
	lines := []string{
		"residential: pool at 127.0.0.77:3128 of E-017, E-018 (weight 2), ports (ports 10001-10003, weight 1000): requests take turns",
		"six: pool at [::1]:9477 of E-018: each process keeps its exit",
		"mapped: pool at 127.255.255.255:1 of E-017: each user name keeps its exit",
		"another: pool at 127.0.0.77:3129 of E-017: each destination keeps its exit",
		"plain: pool at 127.0.0.78:3128 of E-017: requests take turns",
	}
	if got := Describe(p); !slices.Equal(got, lines) {
		t.Errorf("got:\n%q\nwant:\n%q", got, lines)
	}
}

// Pools may stand before the exits that they name, and away from metrics.
func TestPoolsBeforeExits(t *testing.T) {
	p := mustParse(t, "pools: [{name: p, listen: 127.0.0.77:3128, exits: [a]}]\nexits: [{name: a, proxy: \"192.0.2.1:80\"}]")
	if len(p.Pools) != 1 || p.Pools[0].Members[0].Exit != &p.Exits[0] {
		t.Errorf("got %+v", p.Pools)
	}
	_, err := Parse("f", []byte("pools: [{name: p, listen: 127.0.0.1:3128, exits: [a]}]\nmetrics: {listen: \"localhost:3128\"}\nexits: [{name: a, proxy: \"192.0.2.1:80\"}]"))
	if want := "f:1: pools[0].listen: 127.0.0.1:3128 is where the metrics are; choose another address or port"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Where exits cannot be read, pools do not complain of it.
func TestPoolsOfBadExits(t *testing.T) {
	for text, want := range map[string]string{
		"exits: none":                  "f:1: exits: must be a list, as in [{name: wg0, interface: wg0}]",
		"exits: [{a: 1}]":              "f:1: exits[0].a: unknown key; known here are name, interface, source, mark, uid, proxy, session, rotating, lifetime, user, password_file, rebind, same_as, price",
		"metrics: {}":                  "f:2: pools[0].exits[0]: no exit is called a; write the name of one under exits",
		"exits: [{name: a, proxy: x}]": `f:1: exits[0].proxy: "x" has no port; write it as gw.proxy.example:8000, or 10001-10100 where each port is an exit`,
	} {
		_, err := Parse("f", []byte(text+"\npools: [{name: p, listen: 127.0.0.77:3128, exits: [a]}]"))
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

const hush = "hush-Zaubärwort: 7"

// withPassword is a policy whose only exit has its password in a file.
func withPassword(file string) string {
	return fmt.Sprintf("exits: [{name: a, proxy: \"192.0.2.1:80\", user: customer-7, password_file: %q}]\npools: [{name: p, listen: 127.0.0.77:3128, exits: [a]}]", file)
}

func TestPasswordFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		return name
	}
	for i, text := range []string{hush, hush + "\n", hush + "\r\n", hush + "\nsecond\x00line\n", strings.Repeat("p", maxPassword) + "\r\n" + strings.Repeat("x", 1<<20)} {
		for _, mode := range []os.FileMode{0o600, 0o400, 0o640, 0o660} {
			want, _, _ := strings.Cut(text, "\n")
			want = strings.TrimSuffix(want, "\r")
			got := mustParse(t, withPassword(file("good", text, mode))).Exits[0].Proxy
			if got.User != "customer-7" || !reflect.DeepEqual(got.Password, policy.NewSecret(want)) {
				t.Errorf("text %d: got user %s and a password that is another", i, got.User)
			}
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file("target", hush, 0o600), link); err != nil {
		t.Fatal(err)
	}
	mustParse(t, withPassword(link))

	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(dir, "public")
	if err := os.Symlink(file("world", hush, 0o644), public); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{filepath.Join(dir, "none"), " cannot be read: no such file or directory; create it with mode 0600 and the password as its first line"},
		{filepath.Join(dir, "good", "x"), " cannot be read: not a directory; check the file"},
		{dir, " is no regular file; name one whose first line is the password"},
		{fifo, " is no regular file; name one whose first line is the password"},
		{file("readable", hush, 0o604), " is open to every user (mode 0604); run chmod o= " + filepath.Join(dir, "readable")},
		{file("writable", hush, 0o602), " is open to every user (mode 0602); run chmod o= " + filepath.Join(dir, "writable")},
		{public, " is open to every user (mode 0644); run chmod o= " + public},
		{file("empty", "", 0o600), " has no password in its first line; write it there, or remove password_file for none"},
		{file("second", "\n"+hush, 0o600), " has no password in its first line; write it there, or remove password_file for none"},
	} {
		_, err := Parse("f", []byte(withPassword(c.file)))
		if want := "f:1: exits[0].password_file: " + c.file + c.want; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, c := range []struct{ file, want string }{
		{file("long", strings.Repeat("p", maxPassword+1), 0o600), "has more than 1024 bytes; write the password alone there"},
		{file("long-line", strings.Repeat("p", 1<<20), 0o600), "has more than 1024 bytes; write the password alone there"},
		{file("binary", hush+"\x00", 0o600), "holds control characters; write the password alone there, as text"},
		{file("tab", hush+"\t", 0o600), "holds control characters; write the password alone there, as text"},
	} {
		_, err := Parse("f", []byte(withPassword(c.file)))
		want := "f:1: exits[0].password_file: the first line of " + c.file + " " + c.want
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if err != nil && strings.Contains(err.Error(), hush) {
			t.Errorf("the password is shown: %v", err)
		}
	}
}

func TestUnreadable(t *testing.T) {
	for err, want := range map[error]string{
		&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}: "/x cannot be read: permission denied; run as a user who may read it",
		&fs.PathError{Op: "read", Path: "/x", Err: syscall.EIO}:    "/x cannot be read: input/output error; check the file",
	} {
		got := unreadable("/x", err)
		if got.Error() != want || !errors.Is(got, errors.Unwrap(err)) {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

// Whoever prints or encodes the policy gets no password.
func TestPasswordIsNeverShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.pw")
	if err := os.WriteFile(file, []byte(hush), 0o600); err != nil {
		t.Fatal(err)
	}
	p := mustParse(t, withPassword(file))
	// The YAML package follows the fields itself.
	text, err := yaml.Marshal(p.Exits[0].Proxy)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "password: '[secret]'") {
		t.Errorf("got %s, want a placeholder", text)
	}
	for how, got := range map[string]string{
		"yaml": string(text), "%+v": fmt.Sprintf("%+v", p), "%#v": fmt.Sprintf("%#v", p.Exits), "describe": strings.Join(Describe(p), "\n"),
	} {
		if strings.Contains(got, "hush") || how == "describe" && strings.Contains(got, "customer-7") {
			t.Errorf("%s shows it: %s", how, got)
		}
	}
}
