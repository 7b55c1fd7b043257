// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// netnsPrefix begins the names of this run's network namespaces.
func netnsPrefix() string { return fmt.Sprintf("e2e-%d-", os.Getpid()) }

var namespaces atomic.Int64

// newNetns makes a network namespace with a loopback that is up. It goes with
// the test.
func newNetns(t testing.TB) (name string) {
	t.Helper()
	needRoot(t)
	name = fmt.Sprintf("%s%d", netnsPrefix(), namespaces.Add(1))
	mustRun(t, "ip", "netns", "add", name)
	t.Cleanup(func() {
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			mustRun(t, "ip", "netns", "del", name)
		}
	})
	mustRun(t, "ip", "-n", name, "link", "set", "lo", "up")
	return name
}

func TestOtherNetns(t *testing.T) {
	t.Parallel()
	const rate = 5
	scope := newGroup(t)
	inside, outside := newNetns(t), newNetns(t)
	// A device ends with its namespace, and so does its peer: that shows from
	// outside when the namespace is really gone.
	mustRun(t, "ip", "-n", outside, "link", "add", "peer", "type", "veth", "peer", "name", "dev", "netns", inside)
	enter := func(in *group, role string, args ...string) *process {
		t.Helper()
		return start(t, how{in: in, env: []string{roleName + "=" + role}},
			append([]string{"ip", "netns", "exec", inside, here.self}, args...)...)
	}
	server := enter(nil, roleOrigin)
	var port int
	waitFor(t, 10*time.Second, "the origin to tell its port", func() bool {
		return json.Unmarshal([]byte(server.stdout.String()), &port) == nil
	})
	addr := hostPort("127.0.0.1", port)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [127.0.0.1], ports: [%d]}, rate: %d/s}", port, rate))
	log := d.follow(t)

	// Until the daemon notices the namespace its connections are native.
	first := enter(scope, roleProbe, addr, "1m", "5ms")
	waitAttempts(t, first, time.Time{}, "a redirected connection from the namespace", redirected)
	first.kill()
	served := false
	for _, a := range attempts(t, first) {
		switch {
		case a.Error != "" || a.Status != 200:
			t.Errorf("got %+v, want an answer", a)
		case a.Native && served:
			t.Errorf("got %+v after a redirected connection, want it redirected", a)
		case !a.Native:
			served = true
		}
	}

	// From then on they are paced.
	begin := len(dispatches(t, log))
	var all []*process
	for range 3 {
		all = append(all, enter(scope, roleProbe, addr, "3s", "0s"))
	}
	answered := 0
	for _, p := range all {
		p.mustSucceed(t, 30*time.Second)
		for _, a := range attempts(t, p) {
			if !redirected(a) {
				t.Errorf("got %+v, want it redirected", a)
			}
			answered++
		}
	}
	waitFor(t, 10*time.Second, "an event for each dispatch", func() bool {
		return len(dispatches(t, log)) >= begin+answered
	})
	at := dispatches(t, log)[begin:]
	for i := 1; i < len(at); i++ {
		if got, want := at[i]-at[i-1], int64(time.Second)/rate; got < want {
			t.Errorf("got dispatches %v apart, want at least %v", time.Duration(got), time.Duration(want))
		}
	}
	if least := 2 * rate; answered < least {
		t.Errorf("got %d answers in 3 s, want at least %d", answered, least)
	}

	// With its last process the daemon lets the namespace go.
	server.kill()
	mustRun(t, "ip", "netns", "del", inside)
	waitFor(t, 20*time.Second, "the namespace to end", func() bool {
		return exec.Command("ip", "-n", outside, "link", "show", "peer").Run() != nil
	})
}

func TestUID(t *testing.T) {
	t.Parallel()
	const nobody = "65534"
	scope := newGroup(t)
	o := newOrigin(t)
	seen := make(chan string, 1)
	o.look = func(client int) {
		for _, s := range tcpSockets(t, "/proc/net/tcp") {
			if s.localPort == client && s.remotePort == o.port {
				seen <- s.uid
				return
			}
		}
		seen <- "none"
	}
	d := newDaemon(t, scope, plenty(o.port))
	for uid, command := range map[string][]string{
		"0":    {"curl", "-sS", "http://" + o.addr()},
		nobody: {"setpriv", "--reuid", nobody, "--regid", nobody, "--clear-groups", "curl", "-sS", "http://" + o.addr()},
	} {
		start(t, how{in: scope}, command...).mustSucceed(t, 20*time.Second)
		if got := <-seen; got != uid {
			t.Errorf("upstream socket of a client of uid %s: got uid %s", uid, got)
		}
	}
	if l := d.lane(t); l.Granted != 2 {
		t.Errorf("got %d requests through the lane, want 2", l.Granted)
	}
}

// TestUIDRule has a route that only depends on the user: an uidrange rule, as
// VPNs per user have it, keeps one user from the origin.
func TestUIDRule(t *testing.T) {
	t.Parallel()
	const nobody = "65534"
	scope := newGroup(t)
	ns := newNetns(t)
	mustRun(t, "ip", "-n", ns, "addr", "add", "10.99.0.1/32", "dev", "lo")
	mustRun(t, "ip", "-n", ns, "rule", "add", "pref", "1", "uidrange", nobody+"-"+nobody, "to", "10.99.0.1", "prohibit")
	// Local addresses are looked up first; for the rule to be asked before,
	// that table has to come later.
	mustRun(t, "ip", "-n", ns, "rule", "add", "pref", "2", "lookup", "local")
	mustRun(t, "ip", "-n", ns, "rule", "del", "pref", "0")
	script := "import http.server, sys\nhttp.server.HTTPServer(('10.99.0.1', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()"
	server := start(t, how{}, "ip", "netns", "exec", ns, "python3", "-c", script)
	ask := func(in *group, uid string) *process {
		t.Helper()
		return start(t, how{in: in}, "ip", "netns", "exec", ns, "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups",
			"curl", "-sS", "-m", "10", "-o", "/dev/null", "http://10.99.0.1:8000/")
	}
	waitFor(t, 20*time.Second, "the origin", func() bool {
		if !server.running() {
			t.Fatalf("the origin has ended\n%s", server.stderr.String())
		}
		return ask(nil, "0").wait(t, 20*time.Second) == 0
	})
	if got := ask(nil, nobody).wait(t, 20*time.Second); got == 0 {
		t.Fatal("without egressd: the user that the rule is about reached the origin")
	}
	d := newDaemon(t, scope, "  - {name: all, match: {hosts: [10.99.0.1], ports: [8000]}, rate: 1000/s}")
	waitFor(t, 20*time.Second, "the namespace to be served", func() bool {
		ask(scope, "0").mustSucceed(t, 20*time.Second)
		return strings.Contains(d.stderr.String(), "network namespace is served")
	})
	ask(scope, "0").mustSucceed(t, 20*time.Second)
	if got := ask(scope, nobody).wait(t, 20*time.Second); got == 0 {
		t.Error("a client whose user has no route to the origin got an answer: the upstream socket is another user's")
	}
	if got := d.lane(t).Granted; got == 0 {
		t.Error("no request went through the lane: nothing was tested")
	}
}

// TestListenerGone takes the proxy's listener away under a living daemon: new
// connections must go untouched.
func TestListenerGone(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	p := startProbe(t, scope, o.addr(), time.Minute, 5*time.Millisecond)
	waitAttempts(t, p, time.Time{}, "a redirected connection", redirected)
	metrics := d.status(t).Metrics
	for fd, port := range listeners(t, d.pid()) {
		if hostPort("127.0.0.1", port) != metrics {
			shutdownOf(t, d.pid(), fd)
		}
	}
	gone := time.Now()
	waitAttempts(t, p, gone, "a native connection", native)
	p.kill()
	for _, a := range attempts(t, p) {
		if a.At > gone.UnixNano() && !native(a) {
			t.Errorf("without a listener: got %+v, want a native connection", a)
		}
	}
	if n := d.status(t).Kernel.Untouched["listener"]; n == 0 {
		t.Errorf("got %+v, want connections that went untouched by gate listener", d.status(t).Kernel)
	}
}

// listeners are the listening TCP sockets of a process, by descriptor.
func listeners(t testing.TB, pid int) map[int]int {
	t.Helper()
	byInode := map[string]int{}
	for _, s := range tcpSockets(t, fmt.Sprintf("/proc/%d/net/tcp", pid)) {
		if s.state == "0A" {
			byInode[s.inode] = s.localPort
		}
	}
	found := map[int]int{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range fds {
		target, _ := os.Readlink(path) // closed meanwhile: no listener
		inode, ok := strings.CutPrefix(target, "socket:[")
		if !ok {
			continue
		}
		if port, ok := byInode[strings.TrimSuffix(inode, "]")]; ok {
			found[number(filepath.Base(path))] = port
		}
	}
	return found
}

// shutdownOf shuts a socket of another process down.
func shutdownOf(t testing.TB, pid, fd int) {
	t.Helper()
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	own, err := unix.PidfdGetfd(handle, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	if err := unix.Shutdown(own, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
}
