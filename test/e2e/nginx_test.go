// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nginx is an origin that allows one request per second from all its clients
// together, and answers 429 beyond that. It has no room for what comes early,
// be it by a thousandth of a second.
type nginx struct {
	port int
	log  string
}

// The parts that the configurations of all nginxes here begin with, and have in
// their block http. The first argument is the folder that they may write to.
const (
	nginxMain = `
daemon off;
user root;
worker_processes 1;
pid %[1]s/pid;
error_log %[1]s/error.log warn;
events { worker_connections 512; }`
	nginxFolders = `
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
`
)

const nginxConfig = nginxMain + `
http {
	log_format receipt '$msec $status $remote_addr';
	access_log %[1]s/access.log receipt;
` + nginxFolders + `	limit_req_zone $server_port zone=all:64k rate=1r/s;
	limit_req_status 429;
	server {
		listen 127.0.0.1:%[2]d;
		listen [::1]:%[2]d;
		location / {
			limit_req zone=all;
			root %[1]s/www;
		}
	}
}
`

// newNginx starts an nginx on a free port of the loopback and waits until it
// answers.
func newNginx(t testing.TB) *nginx {
	t.Helper()
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "www", "index.html"), "hello\n")
	n := &nginx{port: freePort(t), log: filepath.Join(dir, "access.log")}
	config := filepath.Join(dir, "nginx.conf")
	mustWrite(t, config, fmt.Sprintf(nginxConfig, dir, n.port))
	p := start(t, how{}, "nginx", "-p", dir, "-c", config, "-e", filepath.Join(dir, "error.log"))
	// The master takes its workers along only if it is asked.
	t.Cleanup(func() {
		if p.running() {
			p.signal(t, quit)
			p.wait(t, 10*time.Second)
		}
	})
	for _, host := range []string{"127.0.0.1", "::1"} {
		waitListening(t, p, host, n.port)
	}
	return n
}

// waitListening waits until somebody accepts connections there. It sends
// nothing.
func waitListening(t testing.TB, p *process, host string, port int) {
	t.Helper()
	waitFor(t, 10*time.Second, fmt.Sprintf("%s to listen on %s", p.cmd.Args[0], host), func() bool {
		if !p.running() {
			t.Fatalf("%q ended\n%s", p.cmd.Args, p.stderr.String())
		}
		conn, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// freePort finds a port that is free in both families on the loopback.
func freePort(t testing.TB) int {
	t.Helper()
	for range 20 {
		v4, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := v4.Addr().(*net.TCPAddr).Port
		v6, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
		v4.Close()
		if err == nil {
			v6.Close()
			return port
		}
	}
	t.Fatal("found no port that is free in both families")
	return 0
}

// receipt is one request as the origin saw it.
type receipt struct {
	at     time.Duration // since the first
	status int
}

// receipts reads the access log.
func (n *nginx) receipts(t testing.TB) (all []receipt) {
	t.Helper()
	text, err := os.ReadFile(n.log)
	if err != nil {
		t.Fatal(err)
	}
	var first float64
	for line := range strings.Lines(string(text)) {
		var at float64
		var r receipt
		var from string
		if _, err := fmt.Sscan(line, &at, &r.status, &from); err != nil {
			t.Fatalf("access log: %v in %q", err, line)
		}
		if len(all) == 0 {
			first = at
		}
		r.at = time.Duration((at - first) * 1e9).Round(time.Millisecond)
		all = append(all, r)
	}
	return all
}

// count counts the requests in the first span, and among them those that were
// limited.
func count(all []receipt, span time.Duration) (sent, limited int) {
	for _, r := range all {
		if r.at > span {
			break
		}
		sent++
		if r.status == 429 {
			limited++
		}
	}
	return sent, limited
}
