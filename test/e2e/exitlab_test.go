// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lab is a small internet of one test: a namespace for clients, and egressd
// with them, one for the origin, and one for each exit between the two. Clients
// see the near addresses of exits, the origin their far ones.
//
//	clients 10.77.0.1 ── 10.77.0.1N exit N 10.78.0.1N ── 10.78.0.1 origin
//
// Clients have no route to the origin but through exits.
type lab struct {
	dir     string
	hosts   string // in the place of /etc/hosts for all that runs in the lab
	clients string // namespaces
	origin  string
	log     string // the origin's access log
	trust   string // file with the origin's certificate
	exits   []*labExit
}

// labExit is an exit of a lab.
type labExit struct {
	name  string
	netns string
	near  string // address for clients
	far   string // address that the origin sees
	port  int    // of the proxy
	more  string // further keys of the exit in the policy file, each after a comma
}

const (
	originHost = "shop.test"
	originAddr = "10.78.0.1"
	// originRate is how many requests a second the origin allows an address,
	// with some room for those that come in a bunch.
	originRate = 3
	// hardPath begins the paths that the origin gives the first exit of the lab
	// only hardRate times a minute, and asks for hardDelay seconds of rest.
	hardPath  = "/hard"
	hardRate  = 6
	hardDelay = 3
)

const labOrigin = nginxMain + `
http {
	log_format receipt '$msec $status $remote_addr $request_uri';
	access_log %[1]s/access.log receipt;
` + nginxFolders + `	map $remote_addr$request_uri $hard {
		default "";
		~^10\.78\.0\.11%[2]s $binary_remote_addr;
	}
	limit_req_zone $binary_remote_addr zone=each:1m rate=%[3]dr/s;
	limit_req_zone $hard zone=hard:64k rate=%[4]dr/m;
	limit_req_status 429;
	server {
		listen %[6]s:80;
		listen %[6]s:443 ssl;
		ssl_certificate %[1]s/cert.pem;
		ssl_certificate_key %[1]s/key.pem;
		location / {
			limit_req zone=each burst=3 nodelay;
			limit_req zone=hard;
			root %[1]s/www;
			try_files /index.html =404;
			error_page 429 @later;
		}
		location @later {
			add_header Retry-After %[5]d always;
			return 429;
		}
	}
}
`

// newLab makes a lab without exits. It goes with the test.
func newLab(t testing.TB) *lab {
	t.Helper()
	l := newPlainLab(t)
	addBridge(t, l.clients, "near", "10.77.0.1/24")
	addBridge(t, l.origin, "far", originAddr+"/24")
	mustCertify(t, originHost, filepath.Join(l.dir, "cert.pem"), filepath.Join(l.dir, "key.pem"))
	l.trust = filepath.Join(l.dir, "cert.pem")
	mustWrite(t, filepath.Join(l.dir, "nginx.conf"),
		fmt.Sprintf(labOrigin, l.dir, hardPath, originRate, hardRate, hardDelay, originAddr))
	l.serve(t, l.origin, netip.MustParseAddrPort(originAddr+":80"),
		"nginx", "-p", l.dir, "-c", filepath.Join(l.dir, "nginx.conf"), "-e", filepath.Join(l.dir, "error.log"))
	return l
}

// newPlainLab makes the two namespaces at the ends, with nothing between them.
func newPlainLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{clients: newNetns(t), origin: newNetns(t)}
	l.dir = shortDir(t)
	l.log = filepath.Join(l.dir, "access.log")
	l.hosts = filepath.Join(l.dir, "hosts")
	mustWrite(t, l.hosts, "127.0.0.1 localhost\n"+originAddr+" "+originHost+"\n")
	if err := os.Mkdir(filepath.Join(l.dir, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(l.dir, "www", "index.html"), "hello\n")
	return l
}

func addBridge(t testing.TB, netns, name, addr string) {
	t.Helper()
	mustRun(t, "ip", "-n", netns, "link", "add", name, "type", "bridge")
	mustRun(t, "ip", "-n", netns, "addr", "add", addr, "dev", name)
	mustRun(t, "ip", "-n", netns, "link", "set", name, "up")
}

// addExit puts one more exit between the clients and the origin.
func (l *lab) addExit(t testing.TB, name string) *labExit {
	t.Helper()
	n := 11 + len(l.exits)
	e := &labExit{name: name, netns: newNetns(t), near: fmt.Sprintf("10.77.0.%d", n), far: fmt.Sprintf("10.78.0.%d", n)}
	for _, side := range []struct{ netns, bridge, addr string }{{l.clients, "near", e.near}, {l.origin, "far", e.far}} {
		plug := fmt.Sprintf("%s%d", side.bridge, n)
		mustRun(t, "ip", "-n", side.netns, "link", "add", plug, "type", "veth", "peer", "name", side.bridge, "netns", e.netns)
		mustRun(t, "ip", "-n", side.netns, "link", "set", plug, "master", side.bridge, "up")
		mustRun(t, "ip", "-n", e.netns, "addr", "add", side.addr+"/24", "dev", side.bridge)
		mustRun(t, "ip", "-n", e.netns, "link", "set", side.bridge, "up")
	}
	l.exits = append(l.exits, e)
	return e
}

// exit is the exit of that name.
func (l *lab) exit(t testing.TB, name string) *labExit {
	t.Helper()
	for _, e := range l.exits {
		if e.name == name {
			return e
		}
	}
	t.Fatalf("the lab has no exit %s", name)
	return nil
}

// within is the command that runs another one in a namespace of the lab. All
// of /sys stays in sight, as cgroups and pins lie there: so not ip netns exec.
func (l *lab) within(netns string) []string {
	return []string{"nsenter", "--net=/run/netns/" + netns, "--", "unshare", "--mount",
		"sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, l.hosts}
}

// start starts a process in a namespace of the lab.
func (l *lab) start(t testing.TB, netns string, h how, args ...string) *process {
	t.Helper()
	return start(t, h, append(l.within(netns), args...)...)
}

// serve starts a server in a namespace and waits until it listens. All of its
// processes end with the test.
func (l *lab) serve(t testing.TB, netns string, addr netip.AddrPort, args ...string) *process {
	t.Helper()
	p := l.start(t, netns, how{}, args...)
	t.Cleanup(func() {
		p.endAll(t)
		if t.Failed() && p.stderr.String() != "" {
			t.Logf("%s said:\n%s", args[0], p.stderr.String())
		}
	})
	look := l.start(t, netns, how{}, "bash", "-c", `until exec 3<>"/dev/tcp/$0/$1"; do sleep 0.05; done 2>/dev/null`,
		addr.Addr().String(), strconv.Itoa(int(addr.Port())))
	waitFor(t, 20*time.Second, args[0]+" to listen at "+addr.String(), func() bool {
		if !p.running() {
			t.Fatalf("%q ended\n%s%s", args, p.stdout.String(), p.stderr.String())
		}
		return !look.running()
	})
	return p
}

// endAll ends the process and those that it started.
func (p *process) endAll(t testing.TB) {
	t.Helper()
	group := p.pid()
	if err := unix.Kill(-group, unix.SIGKILL); err != nil && err != unix.ESRCH {
		t.Errorf("end %q: %v", p.cmd.Args, err)
	}
	waitFor(t, 10*time.Second, fmt.Sprintf("the end of %q", p.cmd.Args), func() bool {
		for _, pid := range here.processes() {
			if of, err := unix.Getpgid(pid); err == nil && of == group {
				return false
			}
		}
		return true
	})
	<-p.ended // which looks gone before its sockets are
}

// prepareDaemon makes a daemon that will run with the clients, whose policy
// knows the proxies of all exits by the names of the lab.
func (l *lab) prepareDaemon(t testing.TB, scope *group) *daemon {
	t.Helper()
	d := prepareDaemon(t, scope)
	d.within = l.within(l.clients)
	d.extra = "exits:\n"
	for _, e := range l.exits {
		d.extra += fmt.Sprintf("  - {name: %s, proxy: \"%s:%d\"%s}\n", e.name, e.near, e.port, e.more)
	}
	return d
}

// newDaemon starts such a daemon.
func (l *lab) newDaemon(t testing.TB, scope *group, budgets string) *daemon {
	t.Helper()
	d := l.prepareDaemon(t, scope)
	d.write(t, budgets)
	d.start(t)
	return d
}

// metrics scrapes a daemon of the lab.
func (l *lab) metrics(t testing.TB, d *daemon) string {
	t.Helper()
	p := l.start(t, l.clients, how{}, "curl", "-sS", "-f", "http://"+d.status(t).Metrics+"/metrics")
	p.mustSucceed(t, 20*time.Second)
	return p.stdout.String()
}

// exitLane is a lane of several exits.
type exitLane struct {
	lane
	Budget, Destination, Exit string
	Reason                    string
}

// exitLanes are the lanes of a daemon by their ids.
func exitLanes(t testing.TB, d *daemon) map[string]exitLane {
	t.Helper()
	var all []exitLane
	d.askJSON(t, &all, "lanes")
	byID := map[string]exitLane{}
	for _, l := range all {
		byID[l.Lane] = l
	}
	return byID
}

// sighting is one request as the origin of a lab saw it.
type sighting struct {
	at     time.Duration // since the epoch
	status int
	from   string // address
	path   string
}

// sightings reads the origin's access log: what is about paths that begin with
// prefix.
func (l *lab) sightings(t testing.TB, prefix string) (all []sighting) {
	t.Helper()
	for line := range strings.Lines(mustRead(t, l.log)) {
		var s sighting
		var at string
		if _, err := fmt.Sscan(line, &at, &s.status, &s.from, &s.path); err != nil {
			t.Fatalf("access log: %v in %q", err, line)
		}
		ms, err := strconv.ParseInt(strings.Replace(at, ".", "", 1), 10, 64) // nginx writes three digits
		if err != nil {
			t.Fatalf("access log: %v in %q", err, line)
		}
		s.at = time.Duration(ms) * time.Millisecond
		if strings.HasPrefix(s.path, prefix) {
			all = append(all, s)
		}
	}
	return all
}

// byAddress sorts sightings by the address that the origin saw.
func byAddress(all []sighting) map[string][]sighting {
	from := map[string][]sighting{}
	for _, s := range all {
		from[s.from] = append(from[s.from], s)
	}
	return from
}

// late is by how much the origin may see a request later than another one
// that left with it: a proxy is between, and the machine may be busy.
const late = time.Second

// mustKeep looks whether sightings keep a budget of rate a second and a burst
// of one, in every window of time.
func mustKeep(t testing.TB, what string, all []sighting, rate float64) {
	t.Helper()
	for i := range all {
		for j := i; j < len(all); j++ {
			window := all[j].at - all[i].at
			if got, want := float64(j-i+1), 1+rate*(window+late).Seconds(); got > want {
				t.Errorf("%s: got %v requests within %v, want at most %v with a tolerance of %v", what, got, window, want, late)
				return
			}
		}
	}
}

// mustPace looks whether the dispatches of every lane of the budget shop were at
// least as far apart as its rate a second says, until some instant of
// CLOCK_MONOTONIC. When clients leave, what was dispatched to them and not sent
// is dispatched once more.
func mustPace(t testing.TB, log *process, rate float64, until int64) {
	t.Helper()
	mustPaceBursts(t, log, rate, 1, until)
}

// mustPaceBursts is mustPace where so many may leave at once, and be waited for
// later.
func mustPaceBursts(t testing.TB, log *process, rate float64, burst int, until int64) {
	t.Helper()
	last := map[string][]int64{}
	for _, ev := range events(t, log) {
		if ev.Kind != "dispatch" || !strings.HasPrefix(ev.Lane, "shop/") || ev.Mono >= until {
			continue
		}
		at := append(last[ev.Lane], ev.Mono)
		if i := len(at) - 1 - burst; i >= 0 {
			if apart := time.Duration(ev.Mono - at[i]); float64(apart) < float64(time.Second)/rate {
				t.Errorf("lane %s: %d dispatches within %v, want at most %v a second and %d at once", ev.Lane, burst+1, apart, rate, burst)
			}
		}
		last[ev.Lane] = at
	}
	if len(last) == 0 {
		t.Error("got no dispatch of budget shop: nothing was tested")
	}
}

// mustCertify makes a certificate that a name signs for itself.
func mustCertify(t testing.TB, name, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})))
	mustWrite(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}
