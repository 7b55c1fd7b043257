// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// proxyKind is a forward proxy that a lab can have as an exit.
type proxyKind int

const (
	squid proxyKind = iota
	tinyproxy
	haproxy // in front of a squid: HAProxy itself is no forward proxy
	dante
	microsocks
	socks4a // of this test binary: dante and microsocks do not know the names of SOCKS 4a
	broken  // HAProxy that answers whatever it is asked with brokenStatus
)

// The broken proxy has a port for each answer.
const brokenPort = 8000 // and the status

func (k proxyKind) String() string {
	return [...]string{"squid", "tinyproxy", "haproxy", "dante", "microsocks", "socks4a", "broken"}[k]
}

// addProxies adds an exit for each kind, under the kind's name. The exits are in
// that order.
func (l *lab) addProxies(t testing.TB, kinds ...proxyKind) {
	t.Helper()
	for _, k := range kinds {
		l.addProxy(t, k.String(), k, "")
	}
}

// addProxy adds an exit with a proxy that asks for a password, if that is not
// empty: squid of any user, microsocks of the user that the password goes with,
// as user:password.
func (l *lab) addProxy(t testing.TB, name string, k proxyKind, password string) *labExit {
	t.Helper()
	e := l.addExit(t, name)
	dir := shortDir(t)
	near := netip.MustParseAddr(e.near)
	// conf writes the configuration file.
	conf := func(text string) string {
		path := filepath.Join(dir, "conf")
		mustWrite(t, path, text)
		return path
	}
	run := func(port int, args ...string) {
		t.Helper()
		e.port = port
		l.serve(t, e.netns, netip.AddrPortFrom(near, uint16(port)), args...)
	}
	switch k {
	case squid:
		run(3128, "squid", "-N", "-f", conf(squidConf(t, dir, e.near, password)))
	case tinyproxy:
		run(8888, "tinyproxy", "-d", "-c", conf(fmt.Sprintf("Listen %s\nPort 8888\nTimeout 60\nMaxClients 200\n", e.near)))
	case haproxy:
		behind := netip.MustParseAddrPort("127.0.0.1:3128")
		l.serve(t, e.netns, behind, "squid", "-N", "-f", conf(squidConf(t, dir, behind.Addr().String(), password)))
		front := filepath.Join(dir, "haproxy.conf")
		mustWrite(t, front, fmt.Sprintf(haproxyFront, e.near, behind))
		run(8080, "haproxy", "-db", "-f", front)
	case dante:
		run(1080, "danted", "-f", conf(fmt.Sprintf(danteConf, dir, e.near)), "-p", filepath.Join(dir, "pid"))
	case microsocks:
		args := []string{"microsocks", "-i", e.near, "-p", "1080"}
		if user, password, ok := strings.Cut(password, ":"); ok {
			args = append(args, "-u", user, "-P", password)
		}
		run(1080, args...)
	case socks4a:
		run(1080, "env", roleName+"="+roleSOCKS4a, here.self, hostPort(e.near, 1080))
	case broken:
		text := "defaults\n\tmode http\n\ttimeout client 30s\n\ttimeout connect 5s\n\ttimeout server 30s\n"
		for _, status := range []int{407, 502, 503} {
			text += fmt.Sprintf("frontend f%[2]d\n\tbind %[1]s:%[3]d\n\thttp-request return status %[2]d\n", e.near, status, brokenPort+status)
		}
		run(brokenPort+502, "haproxy", "-db", "-f", conf(text))
	}
	return e
}

const danteConf = `
logoutput: %[1]s/log
internal: %[2]s port = 1080
external: far
clientmethod: none
socksmethod: none
client pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }
socks pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }
`

const haproxyFront = `
defaults
	mode tcp
	timeout client 60s
	timeout connect 5s
	timeout server 60s
listen front
	bind %s:8080
	server behind %s
`

// squidConf is a squid that caches nothing.
func squidConf(t testing.TB, dir, addr, password string) string {
	t.Helper()
	// squid gives root up, and has to write here.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	access := ""
	if password != "" {
		helper := filepath.Join(dir, "login")
		mustWrite(t, helper, "#!/bin/sh\nwhile read -r user password; do\n"+
			"\tif [ \"$password\" = '"+password+"' ]; then echo OK; else echo ERR; fi\ndone\n")
		if err := os.Chmod(helper, 0o755); err != nil {
			t.Fatal(err)
		}
		access = "auth_param basic program " + helper + "\nauth_param basic children 1 startup=1\n" +
			"acl users proxy_auth REQUIRED\nhttp_access allow users\nhttp_access deny all\n"
	} else {
		access = "http_access allow all\n"
	}
	return fmt.Sprintf(`
http_port %[2]s:3128
%[3]s
cache deny all
cache_mem 8 MB
access_log none
cache_log %[1]s/cache.log
pid_filename %[1]s/pid
coredump_dir %[1]s
visible_hostname exit.test
pinger_enable off
shutdown_lifetime 0 seconds
`, dir, addr, access)
}

// serveSOCKS4a is a proxy that grants every SOCKS 4a request.
func serveSOCKS4a(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := relaySOCKS4a(conn.(*net.TCPConn)); err != nil {
				fmt.Fprintln(os.Stderr, "socks4a:", err)
			}
		}()
	}
}

func relaySOCKS4a(client *net.TCPConn) error {
	r := bufio.NewReader(client)
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.EOF {
			return nil // somebody looked whether it is here
		}
		return err
	}
	if _, err := r.ReadString(0); err != nil { // user
		return err
	}
	host, err := r.ReadString(0)
	if err != nil {
		return err
	}
	port := strconv.Itoa(int(binary.BigEndian.Uint16(head[2:])))
	conn, err := net.Dial("tcp", net.JoinHostPort(host[:len(host)-1], port))
	if err != nil {
		return err
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	if _, err := client.Write([]byte{0, 90, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(server, r) // an end of either kind ends the relay
		_ = server.CloseWrite()
	}()
	_, err = io.Copy(client, server)
	return err
}

// naiveWorkers is a process with several workers, each with one of the proxies.
// They send as fast as they are let for a span and then leave. The process
// tells when that was, by CLOCK_MONOTONIC, and how many answers had which status
// before, by proxy. Every other worker opens a connection for each request.
const naiveWorkers = `
import http.client, json, os, socket, struct, sys, threading, time
host, path, span, first, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
proxies = json.loads(sys.argv[6])
seen, lock = {p["name"]: {} for p in proxies}, threading.Lock()

def socks5(p):
    s = socket.create_connection((p["host"], p["port"]), timeout=30)
    s.sendall(b"\x05\x01\x00")
    assert s.recv(2) == b"\x05\x00"
    s.sendall(b"\x05\x01\x00\x03" + bytes([len(host)]) + host.encode() + struct.pack(">H", 80))
    answer = s.recv(10)
    if answer[1:2] != b"\x00":
        s.close()
        raise OSError("SOCKS " + repr(answer))
    return s

def connection(p):
    if p["kind"] == "socks5":
        c = http.client.HTTPConnection(host, 80, timeout=30)
        c.sock = socks5(p)
        return c
    c = http.client.HTTPConnection(p["host"], p["port"], timeout=30)
    if p["kind"] == "connect":
        c.set_tunnel(host, 80)
    return c

def work(i):
    p, c = proxies[i % len(proxies)], None
    target = "http://" + host + path if p["kind"] == "absolute" else path
    while True:
        try:
            c = c or connection(p)
            c.request("GET", target, headers={"Host": host})
            a = c.getresponse()
            a.read()
            what = str(a.status)
            if a.will_close or i % 2:
                c.close()
                c = None
        except Exception as e:
            what, c = type(e).__name__ + ": " + str(e), None
            time.sleep(0.1)
        with lock:
            seen[p["name"]][what] = seen[p["name"]].get(what, 0) + 1

for i in range(first, first + count):
    threading.Thread(target=work, args=(i,), daemon=True).start()
time.sleep(span)
with lock:
    print(json.dumps({"end": time.monotonic_ns(), "answers": seen}), flush=True)
    os._exit(0)
`

// naiveProxy is a proxy as naiveWorkers are told of it.
type naiveProxy struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // absolute, connect or socks5
	Host string `json:"host"`
	Port int    `json:"port"`
}

// startNaive starts processes of workers that go to a path of the origin by all
// exits of the lab, in turn.
func (l *lab) startNaive(t testing.TB, scope *group, path string, span float64, processes, threads int) (all []*process) {
	t.Helper()
	var proxies []naiveProxy
	for _, e := range l.exits {
		kind := map[string]string{"squid": "absolute", "tinyproxy": "connect", "haproxy": "connect"}[e.name]
		if kind == "" {
			kind = "socks5"
		}
		proxies = append(proxies, naiveProxy{e.name, kind, e.near, e.port})
	}
	list, err := json.Marshal(proxies)
	if err != nil {
		t.Fatal(err)
	}
	for i := range processes {
		all = append(all, l.start(t, l.clients, how{in: scope}, "python3", "-c", naiveWorkers,
			originHost, path, fmt.Sprint(span), strconv.Itoa(i*threads), strconv.Itoa(threads), string(list)))
	}
	return all
}

// naiveAnswers adds up what processes of naive workers told, by exit. end is when
// the first of them left.
func naiveAnswers(t testing.TB, all []*process) (sum map[string]map[string]int, end int64) {
	t.Helper()
	sum = map[string]map[string]int{}
	for _, p := range all {
		var got struct {
			End     int64
			Answers map[string]map[string]int
		}
		if err := json.Unmarshal([]byte(p.stdout.String()), &got); err != nil {
			t.Fatalf("workers said %q: %v\n%s", p.stdout.String(), err, p.stderr.String())
		}
		if end == 0 || got.End < end {
			end = got.End
		}
		for exit, answers := range got.Answers {
			if sum[exit] == nil {
				sum[exit] = map[string]int{}
			}
			for what, n := range answers {
				sum[exit][what] += n
			}
		}
	}
	return sum, end
}
