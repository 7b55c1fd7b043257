// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBadInput starts daemons that cannot work. Each must say why in one
// line, and leave nothing.
func TestBadInput(t *testing.T) {
	needRoot(t)
	const budgets = "  - {name: all, rate: 1/s}"
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
	// A pid namespace of its own, since init's view of the mounts counts.
	noCgroup2 := []string{
		"unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec",
		`while umount -a -t cgroup2 && grep -q ' - cgroup2 ' /proc/self/mountinfo; do :; done; exec "$@"`, "sh",
	}
	for _, tt := range []struct {
		name   string
		by     []string                      // the command by which egressd is run
		broken func(t *testing.T, d *daemon) // after the policy file was written
		args   func(d *daemon) []string      // nil: run with the policy file
		status int
		says   []string // each in the one line
	}{
		{
			name:   "second daemon on the cgroup",
			broken: func(t *testing.T, d *daemon) { newDaemon(t, d.scope, budgets) },
			status: 1, says: []string{"in use by another egressd"},
		},
		{
			name: "second daemon with the same ledger",
			broken: func(t *testing.T, d *daemon) {
				other := prepareDaemon(t, newGroup(t))
				other.pins = d.pins
				other.write(t, budgets)
				other.start(t)
			},
			status: 1, says: []string{"ledger"},
		},
		{
			name: "admin socket of a living daemon",
			broken: func(t *testing.T, d *daemon) {
				other := prepareDaemon(t, newGroup(t))
				other.socket = d.socket
				other.write(t, budgets)
				other.start(t)
			},
			status: 1, says: []string{"already running", "admin.sock"},
		},
		{
			name: "admin socket is a file",
			broken: func(t *testing.T, d *daemon) {
				mustWrite(t, d.socket, "")
				t.Cleanup(func() { os.Remove(d.socket) })
			},
			status: 1, says: []string{"admin.sock", "no socket"},
		},
		{
			name: "metrics port in use",
			broken: func(t *testing.T, d *daemon) {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { ln.Close() })
				mustWrite(t, d.config, strings.ReplaceAll(mustRead(t, d.config), "127.0.0.1:0", ln.Addr().String()))
			},
			status: 1, says: []string{"metrics", "address already in use"},
		},
		{
			name: "no cgroup2", by: noCgroup2,
			status: 1, says: []string{"cgroup2", "mount -t cgroup2"},
		},
		{
			name: "no such cgroup",
			broken: func(t *testing.T, d *daemon) {
				mustWrite(t, d.config, strings.ReplaceAll(mustRead(t, d.config), d.scope.path, d.scope.path+"/none"))
			},
			status: 1, says: []string{"cgroup", "none"},
		},
		{
			name: "not root", by: nobody,
			status: 1, says: []string{"sudo egressd run"},
		},
		{
			name:   "root without capabilities",
			by:     []string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"},
			status: 1, says: []string{"CAP_"},
		},
		{
			name: "pin directory on another file system",
			args: func(d *daemon) []string {
				return []string{"run", "--config", d.config, "--pin-dir", filepath.Join(d.dir, "pins")}
			},
			status: 1, says: []string{"bpf", "mount -t bpf"},
		},
		{
			name:   "bad policy",
			broken: func(t *testing.T, d *daemon) { d.write(t, "  - {name: all, rate: 1/s, burts: 3}") },
			status: 1, says: []string{"egressd.yml:5: ", "burts"},
		},
		{
			name: "no policy file",
			broken: func(t *testing.T, d *daemon) {
				if err := os.Remove(d.config); err != nil {
					t.Fatal(err)
				}
			},
			status: 1, says: []string{"egressd.yml", "--config"},
		},
		{
			name:   "unknown flag",
			args:   func(*daemon) []string { return []string{"run", "--polcy", "x"} },
			status: 2, says: []string{"--polcy"},
		},
		{
			name:   "unknown command",
			args:   func(*daemon) []string { return []string{"rnu"} },
			status: 2, says: []string{"rnu"},
		},
		{
			name:   "exec without a limit",
			args:   func(*daemon) []string { return []string{"exec", "--", "true"} },
			status: 2, says: []string{"--limit"},
		},
		{
			name:   "exec with a bad limit",
			args:   func(*daemon) []string { return []string{"exec", "--limit", "localhost=fast", "--", "true"} },
			status: 2, says: []string{"fast"},
		},
		{
			name: "exec not as root", by: nobody,
			args:   func(*daemon) []string { return []string{"exec", "--limit", "localhost:8080=1/s", "--", "true"} },
			status: 1, says: []string{"sudo egressd exec"},
		},
		{
			name: "demo not as root", by: nobody,
			args:   func(*daemon) []string { return []string{"demo"} },
			status: 1, says: []string{"sudo egressd demo"},
		},
		{
			name:   "status without a daemon",
			args:   func(d *daemon) []string { return []string{"status", "--socket", d.socket} },
			status: 1, says: []string{"sudo egressd run"},
		},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			d := prepareDaemon(t, newGroup(t))
			d.write(t, budgets)
			if tt.broken != nil {
				tt.broken(t, d)
			}
			args := []string{"run", "--config", d.config, "--pin-dir", d.pins, "--log-level", "error"}
			if tt.args != nil {
				args = tt.args(d)
			}
			p := start(t, how{}, append(append(tt.by, here.bin), args...)...)
			got := p.wait(t, 20*time.Second)
			if got != tt.status {
				t.Errorf("got exit status %d, want %d", got, tt.status)
			}
			text := p.stderr.String()
			if !strings.HasPrefix(text, "egressd: ") || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
				t.Errorf("got %q, want one line that begins with %q", text, "egressd: ")
			}
			for _, want := range tt.says {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q in it", text, want)
				}
			}
			if out := p.stdout.String(); out != "" {
				t.Errorf("got %q on standard output, want nothing", out)
			}
			t.Logf("%s", strings.TrimSpace(text))
		})
	}
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReload(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	budget := func(rate string) string {
		return fmt.Sprintf("  - {name: all, match: {hosts: [127.0.0.1], ports: [%d]}, rate: %s}", o.port, rate)
	}
	d := newDaemon(t, scope, budget("2/s"))
	clients := startProbe(t, scope, o.addr(), time.Minute, 0)
	waitAttempts(t, clients, time.Time{}, "a redirected connection", redirected)
	if got := d.lane(t).Rate; got != 2 {
		t.Errorf("got rate %v of the lane, want 2", got)
	}
	log := d.follow(t)
	reload := func(text string) {
		t.Helper()
		mustWrite(t, d.config, text)
		d.signal(t, hup)
	}
	seen := func(kind string) int { return strings.Count(log.stdout.String(), `"`+kind+`"`) }
	good := mustRead(t, d.config)

	// A good file changes the lane that lives.
	before := seen("reload")
	reload(strings.Replace(good, "2/s", "50/s", 1))
	waitFor(t, 10*time.Second, "the reload", func() bool { return seen("reload") > before })
	if got := d.lane(t).Rate; got != 50 {
		t.Errorf("after the reload: got rate %v of the lane, want 50", got)
	}
	begin := o.count()
	waitFor(t, 20*time.Second, "requests at the new pace", func() bool { return o.count() >= begin+30 })

	// A bad one changes nothing, and the daemon says why.
	bad := strings.Replace(good, "rate: 2/s", "rate: fast", 1)
	reload(bad)
	waitFor(t, 10*time.Second, "the failed reload", func() bool { return seen("reload_failed") > 0 })
	if got := d.lane(t).Rate; got != 50 {
		t.Errorf("after a bad reload: got rate %v of the lane, want 50", got)
	}
	if s := d.status(t); s.Config.OK || !strings.Contains(s.Config.Error, "egressd.yml:5: ") {
		t.Errorf("after a bad reload: got status %+v, want the line of the mistake", s.Config)
	}
	if text := d.ask(t, "status"); !strings.Contains(text, "LAST RELOAD FAILED") {
		t.Errorf("after a bad reload: got status\n%s", text)
	}
	if text := d.stderr.String(); !strings.Contains(text, "reload failed") || !strings.Contains(text, "egressd.yml:5: ") {
		t.Errorf("after a bad reload: got log\n%s", text)
	}
	if got := parseMetrics(t, d.metrics(t))["egressd_config_last_reload_successful"]; got != 0 {
		t.Errorf("after a bad reload: got egressd_config_last_reload_successful %v, want 0", got)
	}

	// So does one that asks for what only a start can do.
	reload(strings.Replace(good, scope.path, scope.path+"/other", 1))
	waitFor(t, 10*time.Second, "the second failed reload", func() bool { return seen("reload_failed") > 1 })
	if s := d.status(t); !strings.Contains(s.Config.Error, "scope.cgroups") {
		t.Errorf("after a reload with another scope: got status %+v, want scope.cgroups named", s.Config)
	}

	reload(good)
	waitFor(t, 10*time.Second, "the last reload", func() bool { return d.status(t).Config.OK })
	if got := d.lane(t).Rate; got != 2 {
		t.Errorf("after the last reload: got rate %v of the lane, want 2", got)
	}
	if got := parseMetrics(t, d.metrics(t))["egressd_config_last_reload_successful"]; got != 1 {
		t.Errorf("after the last reload: got egressd_config_last_reload_successful %v, want 1", got)
	}
	clients.kill()
	for _, a := range attempts(t, clients) {
		if !redirected(a) {
			t.Errorf("during reloads: got %+v, want an answer by the proxy", a)
		}
	}
}
