// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/test/tlsorigin"
)

// tlsNginx is nginx with HTTPS by HTTP/1.1 and HTTP/2: a request per second from
// all its clients together, and 429 with Retry-After beyond.
const tlsNginx = nginxMain + `
http {
	log_format receipt '$msec $status $remote_addr $request_uri $server_protocol';
	access_log %[1]s/access.log receipt;
` + nginxFolders + `	limit_req_zone $server_port zone=all:64k rate=1r/s;
	limit_req_status 429;
	server {
		listen 127.0.0.1:%[2]d ssl http2;
		ssl_certificate %[1]s/cert.pem;
		ssl_certificate_key %[1]s/key.pem;
		error_page 429 @later;
		location / {
			limit_req zone=all;
			root %[1]s/www;
			try_files /index.html =404;
		}
		location @later {
			add_header Retry-After 1 always;
			return 429;
		}
	}
}
`

// nginx starts an nginx for the shop, whose access log is returned too.
func (s *shop) nginx(t testing.TB) (port int, log string) {
	t.Helper()
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "www", "index.html"), "hello\n")
	if err := s.authority.WriteFiles(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), originHost); err != nil {
		t.Fatal(err)
	}
	port = freePort(t)
	config := filepath.Join(dir, "nginx.conf")
	mustWrite(t, config, fmt.Sprintf(tlsNginx, dir, port))
	p := start(t, how{}, "nginx", "-p", dir, "-c", config, "-e", filepath.Join(dir, "error.log"))
	// The master takes its workers along only if it is asked.
	t.Cleanup(func() {
		if p.running() {
			p.signal(t, quit)
			p.wait(t, 10*time.Second)
		}
	})
	waitListening(t, p, "127.0.0.1", port)
	return port, filepath.Join(dir, "access.log")
}

// nginxArrived is what an nginx saw of a run, by the number of the request.
func nginxArrived(t testing.TB, log string, c labClient, r labRun) map[int]tlsorigin.Request {
	t.Helper()
	// It writes a line when it has answered, which its client may know before.
	waitFor(t, 5*time.Second, "nginx to write down all requests", func() bool { return strings.Count(mustRead(t, log), "\n") >= r.count })
	got := map[int]tlsorigin.Request{}
	for line := range strings.Lines(mustRead(t, log)) {
		var at, from, protocol string
		var req tlsorigin.Request
		if _, err := fmt.Sscan(line, &at, &req.Status, &from, &req.Path, &protocol); err != nil {
			t.Fatalf("access log: %v in %q", err, line)
		}
		rest, mine := strings.CutPrefix(req.Path, r.path+"/")
		i, err := strconv.Atoi(rest)
		if !mine || err != nil {
			t.Fatalf("access log: %q is no request of %s", line, r.path)
		}
		if (protocol == "HTTP/2.0") != c.http2 {
			t.Errorf("%s came by %s, want HTTP/2: %v", req.Path, protocol, c.http2)
		}
		if req.Status == 429 {
			req.RetryAfter = "1"
		}
		got[i] = req
	}
	if len(got) != r.count {
		t.Errorf("nginx saw %d requests, want %d", len(got), r.count)
	}
	return got
}

// nginxClients are those that go to nginx: a way each to speak HTTP.
var nginxClients = []string{"curl-h2", "go-h1", "go-h2", "requests"}

// TestHTTPSNginx has an origin that others have written, whose HPACK is another
// one. It is not parallel: nginx is strict to a thousandth of a second.
func TestHTTPSNginx(t *testing.T) {
	needRoot(t)
	t.Run("without", func(t *testing.T) {
		s := newShop(t)
		c := mustLabClient(t, "go-h2")
		port, file := s.nginx(t)
		run := labRun{port: port, path: "/without", count: 4, width: 4}
		got := replies(t, s.start(t, how{in: newGroup(t)}, c, run), c, run)
		sent := nginxArrived(t, file, c, run)
		mustAgree(t, got, sent)
		if n := limitedIn(sent); n != 3 {
			t.Errorf("nginx limited %d of 4 requests at once, want 3", n)
		}
	})
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) { runNginx(t, src) })
	}
}

func limitedIn(sent map[int]tlsorigin.Request) (n int) {
	for _, req := range sent {
		if req.Status == 429 {
			n++
		}
	}
	return n
}

func runNginx(t *testing.T, src source) {
	s := newShop(t)
	scope := newGroup(t)
	var budgets strings.Builder
	runs, files := map[string]labRun{}, map[string]string{}
	for _, name := range nginxClients {
		run := labRun{path: "/nginx/" + name, count: 4, width: 4}
		run.port, files[name] = s.nginx(t)
		runs[name] = run
		fmt.Fprintf(&budgets, "  - {name: %s, match: {hosts: [%s], ports: [%d]}, rate: 1/s, queue: {max_wait: 60s}}\n", name, originHost, run.port)
	}
	d := prepareDaemon(t, scope)
	d.within = s.within()
	env := d.look(t, src)
	d.write(t, budgets.String())
	d.start(t)
	log := d.follow(t)
	var clients []*process
	for _, name := range nginxClients {
		clients = append(clients, s.start(t, how{in: scope, env: env}, mustLabClient(t, name), runs[name]))
	}
	for i, name := range nginxClients {
		c, run := mustLabClient(t, name), runs[name]
		got := replies(t, clients[i], c, run)
		sent := nginxArrived(t, files[name], c, run)
		mustAgree(t, got, sent)
		right, unseen, wrong := judge(saw(t, log), sent, run, src.name)
		for _, w := range wrong {
			t.Error("egressd saw ", w)
		}
		limited := limitedIn(sent)
		if src.exact && (right != run.count || limited != 0) {
			t.Errorf("%s: egressd saw %d answers right, nginx limited %d, want %d and 0", name, right, limited, run.count)
		}
		if !src.exact && src.name == "blind" && right != 0 {
			t.Errorf("%s: egressd saw %d answers in blind connections", name, right)
		}
		t.Logf("%s: %d right, %d wrong, %d unseen, %d limited by nginx", name, right, len(wrong), len(unseen), limited)
	}
}
