// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestLogKeys(t *testing.T) {
	const pipe = "/run/keys/a"
	for _, c := range []struct {
		name string
		env  []string
		want []string // nil: env as it is
		own  string
	}{
		{"nothing set", []string{"A=b"}, []string{"A=b", "SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--tls-keylog=" + pipe}, ""},
		{"empty variables", []string{"SSLKEYLOGFILE=", "NODE_OPTIONS="}, []string{"SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--tls-keylog=" + pipe}, ""},
		{"options of Node's", []string{"NODE_OPTIONS=--a --b=c", "A=b"}, []string{"A=b", "SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--a --b=c --tls-keylog=" + pipe}, ""},
		{"set already", []string{"SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--a --tls-keylog=" + pipe}, []string{"SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--a --tls-keylog=" + pipe}, ""},
		{"another file", []string{"A=b", "SSLKEYLOGFILE=/tmp/log"}, nil, "/tmp/log"},
		{"another file for Node", []string{"NODE_OPTIONS=--tls-keylog=/tmp/log"}, nil, "/tmp/log"},
		{"the last one counts", []string{"SSLKEYLOGFILE=/tmp/log", "SSLKEYLOGFILE="}, []string{"SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--tls-keylog=" + pipe}, ""},
		{"a name that begins alike", []string{"SSLKEYLOGFILES=/x"}, []string{"SSLKEYLOGFILES=/x", "SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--tls-keylog=" + pipe}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.env)
			got, own := LogKeys(c.env, pipe)
			want := c.want
			if want == nil {
				want = c.env
			}
			if !slices.Equal(got, want) || own != c.own {
				t.Errorf("got %q, own %q; want %q, %q", got, own, want, c.own)
			}
			if !slices.Equal(c.env, before) {
				t.Errorf("the environment that was given is now %q", c.env)
			}
		})
	}
	got, _ := LogKeys(nil, `/run/my "keys\`)
	if want := `NODE_OPTIONS=--tls-keylog="/run/my \"keys\\"`; !slices.Contains(got, want) {
		t.Errorf("got %q, want %s", got, want)
	}
}

func TestUID(t *testing.T) {
	for name, want := range map[string]uint32{"root": 0, "0": 0, "54321": 54321} {
		if got, err := UID(name); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "no-such-user-here", "-u", "--help", "4294967295", "4294967296", "1e3"} {
		if got, err := UID(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %d, %v", bad, got, err)
		}
	}
	if got := UserName(0); got != "root" {
		t.Errorf("got %q", got)
	}
	if got := UserName(54321); got != "54321" {
		t.Errorf("got %q", got)
	}
}

func TestProcesses(t *testing.T) {
	pids, err := PIDs()
	if err != nil || !slices.Contains(pids, os.Getpid()) {
		t.Errorf("got %v, %v; want %d among them", pids, err, os.Getpid())
	}
	if got := Comm(os.Getpid()); got == "?" || strings.Contains(got, "\n") {
		t.Errorf("got %q", got)
	}
	if got := Comm(1 << 30); got != "?" {
		t.Errorf("got %q of a process that is not there", got)
	}
}
