// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// How a process is seen, and what makes it one step better.
func TestJudge(t *testing.T) {
	const dir = "/run/egressd/keys"
	observe := rules{mode: policy.Observe, keyLog: true, uprobes: true, keyDir: dir}
	openssl := facts{look: Look{Library: OpenSSL, Probed: true}}
	with := func(f facts, change func(f *facts)) facts { change(&f); return f }
	for _, tt := range []struct {
		name      string
		facts     facts
		rules     rules
		sight     policy.Sight
		expected  bool
		why, next string // in the texts; "" for none
	}{
		{"passed through", openssl, rules{}, policy.SightBlind, true, "passed through", "mode: observe"},
		{"terminated", openssl, rules{mode: policy.Terminate}, policy.SightTerminate, true, "", ""},
		{"logs keys", facts{keyLog: dir + "/a"}, observe, policy.SightKeys, true, "", ""},
		{"logs keys elsewhere", facts{keyLog: "/home/u/keys"}, observe, policy.SightBlind, true, "/home/u/keys", "observe pipe"},
		{"logs keys below", facts{keyLog: dir + "/a/b"}, observe, policy.SightBlind, true, dir + "/a/b", "observe pipe"},
		{"logs keys and policy reads none", facts{keyLog: dir + "/a"}, rules{mode: policy.Observe, uprobes: true, keyDir: dir}, policy.SightBlind, true, "uprobes do not reach", "sources"},
		{"probed", openssl, observe, policy.SightUprobe, true, "logs no keys", "egressd exec --observe"},
		{"probed, a service", with(openssl, func(f *facts) { f.unit = "crawler.service" }), observe, policy.SightUprobe, true, "logs no keys", "egressd observe install crawler.service"},
		{"probes are dangerous", openssl, rules{mode: policy.Observe, uprobes: true, keyLog: true, noProbes: "kernel.panic_on_warn is on"}, policy.SightBlind, true, "panic_on_warn", "--observe"},
		{"no source", openssl, rules{mode: policy.Observe}, policy.SightBlind, true, "no source", "sources"},
		{"Go without probes", facts{look: Look{Library: GoTLS, Why: "it is stripped"}}, observe, policy.SightBlind, true, "it is stripped", "KeyLogWriter"},
		{"Go, probes not allowed", facts{look: Look{Library: GoTLS, Probed: true}}, rules{mode: policy.Observe, keyLog: true}, policy.SightBlind, true, "allows no uprobes", "allow uprobes"},
		{"Chromium", facts{look: Look{Library: BoringSSL, Why: "symbols are stripped"}}, observe, policy.SightBlind, true, "stripped", "--ssl-key-log-file=" + dir + "/PIPE"},
		{"rustls", facts{look: Look{Library: Rustls}}, observe, policy.SightBlind, true, "do not reach", "rustls::KeyLogFile"},
		{"Java", facts{look: Look{Library: JavaTLS}}, observe, policy.SightBlind, true, "", "agent"},
		{"open by keys", facts{sights: map[string]int{"keys": 3}}, rules{}, policy.SightKeys, false, "", ""},
		{"open by keys, one blind", facts{keyLog: dir + "/a", sights: map[string]int{"keys": 3, "blind": 1}}, observe, policy.SightBlind, false, "older", "next connection"},
		{"open by uprobe", with(openssl, func(f *facts) { f.sights = map[string]int{"uprobe": 1} }), observe, policy.SightUprobe, false, "logs no keys", "--observe"},
		{"open blind where it could be probed", with(openssl, func(f *facts) { f.sights = map[string]int{"blind": 1} }), observe, policy.SightBlind, false, "logs no keys", "--observe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sight, expected, why, next := tt.facts.judge(tt.rules)
			if sight != tt.sight || expected != tt.expected {
				t.Errorf("got %s, expected %v; want %s, %v", sight, expected, tt.sight, tt.expected)
			}
			seen := sight == policy.SightKeys || sight == policy.SightTerminate
			if !strings.Contains(why, tt.why) || !strings.Contains(next, tt.next) || (why == "") != seen || (next == "") != seen {
				t.Errorf("got why %q and next %q, want %q and %q in them", why, next, tt.why, tt.next)
			}
		})
	}
}

// The furthest of all budgets counts.
func TestRules(t *testing.T) {
	p := &policy.Policy{TLS: policy.TLS{KeyLog: true}, Budgets: []*policy.Budget{{TLS: policy.Observe}, {}}}
	if r := rulesOf(p, "x"); r.mode != policy.Observe || !r.keyLog || r.uprobes || r.noProbes != "x" {
		t.Errorf("got %+v", r)
	}
}

func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/system.slice/crawler.service":                                     "crawler.service",
		"/system.slice/crawler.service/worker":                              "crawler.service",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/x.service": "",
		"/user.slice/user-1000.slice/session-3.scope":                       "",
		"/": "", "": "",
	} {
		if got := unitOf(cgroup); got != want {
			t.Errorf("%s: got %q, want %q", cgroup, got, want)
		}
	}
}

func TestExcluded(t *testing.T) {
	exclude := []string{"system.slice/ssh.service", "/machine.slice/"}
	for at, want := range map[string]bool{
		"/system.slice/ssh.service": true, "/system.slice/ssh.service/x": true, "/machine.slice/a": true,
		"/system.slice/ssh.service2": false, "/system.slice": false, "/": false,
	} {
		if got := excluded(exclude, at); got != want {
			t.Errorf("%s: got %v, want %v", at, got, want)
		}
	}
	if !excluded([]string{"/"}, "/a") {
		t.Error("everything: got false")
	}
}

// Members are found below the cgroups of the scope, without what is excluded.
func TestMembers(t *testing.T) {
	root := t.TempDir()
	for name, procs := range map[string]string{
		"": "1\n", "a": "2\n3\n0\n", "a/b": "4\n", "a/out": "5\n", "c": "6\n",
	} {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(procs), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := members(root, policy.Scope{Cgroups: []string{"a", "/gone"}, Exclude: []string{"a/out"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{2: "/a", 3: "/a", 4: "/a/b"}
	if len(got) != len(want) || got[2] != "/a" || got[3] != "/a" || got[4] != "/a/b" {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Real processes: those without TLS are left out unless a flow shows it, those
// that nobody may look at are counted.
func TestProcesses(t *testing.T) {
	var pids []int
	for range 4 {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		pids = append(pids, cmd.Process.Pid)
	}
	quiet, busy, closed, own := pids[0], pids[1], pids[2], pids[3]
	src := Sources{Look: func(pid int) (Look, error) {
		switch pid {
		case closed:
			return Look{}, &fs.PathError{Op: "open", Path: "maps", Err: os.ErrPermission}
		case own:
			return Look{}, errors.New("the daemon itself is not looked at")
		}
		return Look{}, nil
	}}
	scope := map[int]string{quiet: "/a", busy: "/a", closed: "/a", own: "/a"}
	flows := map[int]map[string]int{busy: {"keys": 2}, os.Getpid(): {"blind": 1}}
	list, unseen := processes(context.Background(), scope, flows, map[int]bool{own: true}, src, rules{mode: policy.Observe})
	if unseen != 1 {
		t.Errorf("unseen: got %d, want 1", unseen)
	}
	if len(list) != 2 || list[0].PID != busy || list[1].PID != os.Getpid() {
		t.Fatalf("got %+v, want %d and this process, which is out of the scope but has a flow", list, busy)
	}
	if p := list[0]; p.Command != "sleep" || p.Cgroup != "/a" || p.Connections != 2 || p.Sight != "keys" || p.Expected || p.Next != "" {
		t.Errorf("got %+v", p)
	}
	if p := list[1]; p.Cgroup != cgroupOf(os.Getpid()) || p.Sight != "blind" || p.Next == "" {
		t.Errorf("got %+v", p)
	}
}
