// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
)

// healthy is a machine without faults.
func healthy() machine {
	return machine{
		release: "6.18.44", cgroupRoot: "/sys/fs/cgroup", whole: true, pinDir: "/sys/fs/bpf/egressd",
		verified: []loader.Verified{{Program: "connect4"}}, lockdown: "none",
		sysctls: map[string]string{panicOnWarn: "0", bpfStats: "0", bpfJIT: "1"},
	}
}

// Each fault of a machine shows in its own check, with what to do about it,
// and in no other.
func TestFaultsOfTheMachine(t *testing.T) {
	for _, c := range healthy().checks() {
		if c.Status != OK || c.Remedy != "" || c.Finding == "" {
			t.Errorf("healthy machine: got %+v, want ok with a finding", c)
		}
	}
	for _, tt := range []struct {
		name    string
		fault   func(m *machine)
		check   string
		status  Status
		finding string
		remedy  string
		also    []string // checks that follow from it
	}{
		{"no privileges", func(m *machine) {
			m.privileges = fmt.Errorf("%w: run as root, or with the missing CAP_BPF", loader.ErrPrivileges)
		}, "privileges", Warn, "CAP_BPF", "sudo", []string{"programs"}},
		{"old kernel", func(m *machine) { m.kernel = loader.CheckKernel("5.15.0-130-generic") }, "kernel", Fail, "5.15.0", "6.1", []string{"programs"}},
		{"no types", func(m *machine) { m.btf = loader.ErrNoBTF }, "kernel types", Fail, "BTF", "CONFIG_DEBUG_INFO_BTF", []string{"programs"}},
		{"locked down", func(m *machine) { m.lockdown = "confidentiality" }, "lockdown", Fail, "confidentiality", "integrity", nil},
		{"no cgroup v2", func(m *machine) { m.cgroupErr = loader.ErrNoCgroup2 }, "cgroup v2", Fail, "no cgroup v2", "mount -t cgroup2", nil},
		{"part of the hierarchy", func(m *machine) { m.whole = false }, "cgroup v2", Warn, "a part", "cgroup namespace", nil},
		{"no BPF file system", func(m *machine) { m.pins = loader.CheckPinDir("/proc") }, "BPF file system", Fail, "/proc", "mount -t bpf", nil},
		{"hidden BPF file system", func(m *machine) { m.pins = &fs.PathError{Op: "statfs", Path: "/x", Err: os.ErrPermission} }, "BPF file system", Warn, "not checked", "root", nil},
		{"no maps", func(m *machine) { m.verifyErr = errors.New("make maps: operation not permitted") }, "programs", Fail, "make maps", "dmesg", nil},
		{"a program is refused", func(m *machine) {
			m.verified = append(m.verified, loader.Verified{Program: "sendmsg4", Kind: "CGroupSockAddr CGroupUDP4Sendmsg", Err: errors.New("invalid argument\nlong log")})
		}, "programs", Fail, "sendmsg4 (CGroupSockAddr CGroupUDP4Sendmsg): invalid argument …", "CONFIG_CGROUP_BPF", nil},
		{"loopback", func(m *machine) { m.loopback = errors.New("device lo is down") }, "loopback", Fail, "lo is down", "ip link set lo up", nil},
		{"panic on warnings", func(m *machine) { m.sysctls[panicOnWarn] = "1" }, "sysctls", Warn, "panic_on_warn", "sysctl kernel.panic_on_warn=0", nil},
		{"statistics", func(m *machine) { m.sysctls[bpfStats] = "1" }, "sysctls", Warn, "20 ns", "bpf_stats_enabled=0", nil},
		{"no compiler", func(m *machine) { m.sysctls[bpfJIT] = "0" }, "sysctls", Warn, "interpreted", "bpf_jit_enable=1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := healthy()
			tt.fault(&m)
			wantFault(t, m.checks(), tt.check, tt.status, tt.finding, tt.remedy, tt.also)
		})
	}
}

// wantFault holds that the one check shows the fault and all others, but those
// that follow from it, are ok.
func wantFault(t *testing.T, all []Check, name string, status Status, finding, remedy string, also []string) {
	t.Helper()
	found := false
	for _, c := range all {
		if strings.Contains(c.Finding+c.Remedy, "\n") || c.Finding == "" || (c.Status == OK) != (c.Remedy == "") {
			t.Errorf("check %+v: want one line each, and a remedy where it is not ok", c)
		}
		switch {
		case c.Name == name:
			found = true
			if c.Status != status || !strings.Contains(c.Finding, finding) || !strings.Contains(c.Remedy, remedy) {
				t.Errorf("got %+v, want %s, %q in the finding and %q in the remedy", c, status, finding, remedy)
			}
		case strings.Contains(strings.Join(also, " "), c.Name):
			if c.Status == OK {
				t.Errorf("got %+v, want a fault that follows", c)
			}
		case c.Status != OK:
			t.Errorf("got %+v as well, want ok", c)
		}
	}
	if !found {
		t.Errorf("no check %q among %+v", name, all)
	}
}

// What kernels lack is told by their release, at the exact boundary.
func TestLacking(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-28-amd64": "mounts", "6.5.13": "mounts", "6.6.0": "", "6.10.9": "", "6.11.0": "seccomp",
		"6.13.12": "seccomp", "6.14": "", "6.18.44-fc": "", "7.0-rc1": "", "nonsense": "",
	} {
		if got := lacking(release); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", release, got, want)
		}
	}
}

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
	"Max open files            1024                 1048576              files     \n"

// well is a daemon without faults.
func well() running {
	return running{
		now: noon,
		status: &admin.Status{
			PID: 7, Config: admin.Config{OK: true, Budgets: []string{"store"}},
			Kernel: &admin.Kernel{
				Attached: true, Cgroups: []string{"/"}, Canary: admin.Canary{At: noon.Add(-time.Minute), OK: true},
				Untouched: map[string]uint64{"unnamed": 5, "udp": 2},
			},
		},
		limits: []byte(limits), listeners: []uint16{34567},
		programs: []loader.Present{{Cgroup: "/", Hook: "CGroupInet4Connect", Name: "connect4", Own: true}},
	}
}

func TestFaultsOfTheDaemon(t *testing.T) {
	for _, c := range well().checks() {
		if c.Status != OK || c.Remedy != "" || c.Finding == "" {
			t.Errorf("healthy daemon: got %+v, want ok with a finding", c)
		}
	}
	none := func(r *running) {
		r.status, r.programs = nil, nil
		r.statusErr = fmt.Errorf("%w on /run/x", admin.ErrNotRunning)
	}
	for _, tt := range []struct {
		name            string
		fault           func(r *running)
		check           string
		status          Status
		finding, remedy string
	}{
		{"none", none, "daemon", Warn, "nothing is shaped", "sudo egressd run"},
		{"none, but programs", func(r *running) {
			programs := r.programs
			none(r)
			r.programs = programs
		}, "daemon", Warn, "programs of one are attached", "--socket"},
		{"not allowed", func(r *running) {
			none(r)
			r.statusErr = fmt.Errorf("%w on /run/x", admin.ErrNotAllowed)
		}, "daemon", Warn, "not checked", "sudo"},
		{"hangs", func(r *running) {
			none(r)
			r.statusErr = errors.New("ask the daemon on /run/x: context deadline exceeded")
		}, "daemon", Fail, "deadline", "log"},
		{"without programs", func(r *running) { r.status.Kernel = nil }, "daemon", Warn, "without programs", "--no-bpf"},
		{"not attached", func(r *running) { r.status.Kernel.Attached = false }, "daemon", Fail, "not attached", "log"},
		{"reload failed", func(r *running) { r.status.Config.OK, r.status.Config.Error = false, "x.yml:3: rate" }, "policy in force", Warn, "x.yml:3", "reload"},
		{"no budgets", func(r *running) { r.status.Config.Budgets = nil }, "policy in force", Warn, "no budgets", "write"},
		{"canary not tried", func(r *running) { r.status.Kernel.Canary = admin.Canary{} }, "canary", Warn, "not tried", "again"},
		{"canary old", func(r *running) { r.status.Kernel.Canary.At = noon.Add(-time.Hour) }, "canary", Warn, "1h0m0s ago", "log"},
		{"canary by a gate", func(r *running) {
			r.status.Kernel.Canary.OK, r.status.Kernel.Canary.Error = false, "the hook at / let the connection go untouched by gate heartbeat"
		}, "canary", Fail, "heartbeat", "processor"},
		{"canary not seen", func(r *running) {
			r.status.Kernel.Canary.OK, r.status.Kernel.Canary.Error = false, "the hook at / did not see the connection"
		}, "canary", Fail, "did not see", "foreign"},
		{"canary not run", func(r *running) {
			r.status.Kernel.Canary.OK, r.status.Kernel.Canary.Error = false, "canary in /: no such file"
		}, "canary", Fail, "no such file", "log"},
		{"gates", func(r *running) { r.status.Kernel.Untouched["backlog"] = 3 }, "gates", Warn, "3 by gate backlog", "somaxconn"},
		{"no listener", func(r *running) { r.listeners = nil }, "listener", Fail, "at no port", "restart"},
		{"files cannot be seen", func(r *running) { r.listenErr = &fs.PathError{Op: "open", Path: "/proc/7/fd", Err: os.ErrPermission} }, "listener", Warn, "not checked", "root"},
		{"foreign program", func(r *running) {
			r.programs = append(r.programs, loader.Present{Cgroup: "/", Hook: "CGroupInet4Connect", Name: "cil_sock4_connect", ID: 12})
		}, "foreign programs", Warn, "cil_sock4_connect (id 12) at CGroupInet4Connect of /", "canary"},
		{"foreign program without a name", func(r *running) { r.programs = []loader.Present{{Cgroup: "/a", Hook: "h", ID: 3}} }, "foreign programs", Warn, "one without a name (id 3) at h of /a", "canary"},
		{"query for root only", func(r *running) { r.presentEr = fmt.Errorf("%w: x", loader.ErrPrivileges) }, "foreign programs", Warn, "not checked", "root"},
		{"cgroup of the scope is missing", func(r *running) { r.presentEr = fmt.Errorf("open cgroup: %w", fs.ErrNotExist) }, "foreign programs", Warn, "open cgroup", "scope.cgroups"},
		{"few files", func(r *running) { r.limits = []byte(strings.ReplaceAll(limits, "1048576", "4096   ")) }, "open files", Warn, "4096: some 2048", "LimitNOFILE"},
		{"no limits", func(r *running) { r.limits = []byte("Max cpu time 1 2\n") }, "open files", Warn, "cannot be read", "/proc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := well()
			tt.fault(&r)
			wantFault(t, r.checks(), tt.check, tt.status, tt.finding, tt.remedy, nil)
		})
	}
}

// The gates whose remedies are known are those of the programs.
func TestGatesExist(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load the programs")
	}
	k, err := loader.Open(loader.Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	gates, err := k.Gates()
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, g := range gates {
		known[g.Name] = true
	}
	for gate := range gateRemedies {
		if !known[gate] {
			t.Errorf("gate %s: no program leaves by it", gate)
		}
	}
}

func TestPolicyFile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cfg    Config
		status Status
	}{
		{"read", Config{File: "a.yml"}, OK},
		{"default one missing", Config{File: "a.yml", PolicyErr: fs.ErrNotExist}, Warn},
		{"missing", Config{File: "a.yml", FileNamed: true, PolicyErr: fs.ErrNotExist}, Fail},
		{"not for us", Config{File: "a.yml", FileNamed: true, PolicyErr: fs.ErrPermission}, Warn},
		{"wrong", Config{File: "a.yml", PolicyErr: errors.New("a.yml:1: x\na.yml:2: y")}, Fail},
	} {
		if c := checkFile(tt.cfg); c.Status != tt.status || strings.Contains(c.Finding, "\n") {
			t.Errorf("%s: got %+v, want %s in one line", tt.name, c, tt.status)
		}
	}
}

func TestParseListener(t *testing.T) {
	const tail = " 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0"
	for _, tt := range []struct {
		text string
		port uint16
		ok   bool
	}{
		{"   0: 00000000:8707 00000000:0000 0A" + tail, 0x8707, true},
		{"   0: 00000000000000000000000000000000:8707 00000000000000000000000000000000:0000 0A" + tail, 0x8707, true},
		{"   0: 0100007F:8707 00000000:0000 0A" + tail, 0, false},
		{"   0: 00000000:8707 00000000:0000 01" + tail, 0, false},
		{"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", 0, false},
		{"", 0, false},
		{"0: 00000000:ZZZZ 00000000:0000 0A" + tail, 0, false},
	} {
		port, inode, ok := parseListener(tt.text)
		if port != tt.port || ok != tt.ok || ok && inode != "4711" {
			t.Errorf("%q: got %d, %q, %v; want %d, %v", tt.text, port, inode, ok, tt.port, tt.ok)
		}
	}
}

func TestOpenFiles(t *testing.T) {
	for text, want := range map[string]uint64{
		limits: 1048576,
		"Max open files            unlimited            unlimited            files\n": ^uint64(0),
	} {
		if _, hard, ok := openFiles([]byte(text)); !ok || hard != want {
			t.Errorf("%q: got %d, %v; want %d", text, hard, ok, want)
		}
	}
	for _, text := range []string{"", "Max open files", "Max open files 1 x files", "Max processes 1 2\n"} {
		if _, _, ok := openFiles([]byte(text)); ok {
			t.Errorf("%q: got ok", text)
		}
	}
}

func TestLockdown(t *testing.T) {
	file := t.TempDir() + "/lockdown"
	for text, want := range map[string]string{
		"[none] integrity confidentiality\n": "none", "none [integrity] confidentiality\n": "integrity", "none\n": "", "": "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := readLockdown(file); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := readLockdown(file + "-missing"); got != "" {
		t.Errorf("no lockdown: got %q", got)
	}
}

// Nothing that was found reaches a terminal as more than text.
func TestFindingsAreText(t *testing.T) {
	if got := ok("x", "a\x1b[31m\u009bb\nc").Finding; got != "a?[31m?b …" {
		t.Errorf("got %q", got)
	}
}
