// SPDX-License-Identifier: Apache-2.0

package discover

import "testing"

func TestScopeCovers(t *testing.T) {
	s := newScope("/x", []string{"/a.slice", "b/c"}, []string{"/a.slice/not", "d"})
	for cgroup, want := range map[string]bool{
		"/a.slice": true, "/a.slice/x": true, "/a.slicey": false, "/b": false, "/b/c": true, "/b/c/d/e": true,
		"/a.slice/not": false, "/a.slice/not/x": false, "/a.slice/nothing": true, "/": false, "/d": false,
	} {
		if got := s.covers(cgroup); got != want {
			t.Errorf("%s: got %v, want %v", cgroup, got, want)
		}
	}
	everything := newScope("/x", []string{"/"}, []string{"/d"})
	for cgroup, want := range map[string]bool{"/": true, "/a": true, "/d": false, "/d/e": false} {
		if got := everything.covers(cgroup); got != want {
			t.Errorf("%s of all: got %v, want %v", cgroup, got, want)
		}
	}
	if s := newScope("/x", nil, []string{"b"}); !s.covers("/") || !s.covers("/a") || s.covers("/b") {
		t.Error("no cgroups do not stand for all")
	}
}

func TestParseCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/\n": "/",
		"9:name=systemd:/\n4:memory:/x\n0::/system.slice/a b.service\n": "/system.slice/a b.service",
		"0::/a:b\n":         "/a:b",
		"0::/a (deleted)\n": "/a",
		"0::/../b\n":        "/../b",
		"1:cpu:/0::/x\n":    "",
		"":                  "",
	} {
		if got, ok := parseCgroup([]byte(text)); got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", text, got, ok, want)
		}
	}
}

func FuzzProc(f *testing.F) {
	f.Add([]byte("0-3,8,10-11"))
	f.Add([]byte("0::/a\n"))
	f.Add([]byte("Name:\tx\nSeccomp:\t2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		filtered(b)
		if cgroup, ok := parseCgroup(b); ok && len(cgroup) > len(b) {
			t.Errorf("%q: got %q", b, cgroup)
		}
		if cpus, err := parseCPUs(string(b)); err == nil && len(cpus) == 0 {
			t.Errorf("%q is a list of no cpus", b)
		}
	})
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]int{"0": 1, "0-3": 4, "0-3,8,10-11": 7, "": 0, "3-1": 0, "x": 0, "0-99999999": 0, "1,": 0} {
		if got, err := parseCPUs(text); len(got) != want && err == nil || (err == nil) != (want > 0) {
			t.Errorf("%q: got %v, %v; want %d", text, got, err, want)
		}
	}
}
