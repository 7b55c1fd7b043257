// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// mustFind returns the path of a program of another package.
func mustFind(tb testing.TB, name, from string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("needs %s: apt-get install %s", name, from)
	}
	return path
}

// answer is what all origins of these tests do: /s/STATUS is answered with that
// status and, if it is 429, a Retry-After.
func answer(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	status, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/s/"))
	if err != nil {
		status = http.StatusTeapot
	}
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "17")
	}
	w.Header().Set("X-Nothing", strings.Repeat("n", 100))
	if status == http.StatusCreated {
		w.Header().Set("Trailer", "X-Sum")
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead && status != http.StatusNoContent {
		for range 3 {
			io.WriteString(w, strings.Repeat("body ", 2000))
			w.(http.Flusher).Flush()
		}
	}
	if status == http.StatusCreated {
		w.Header().Set("X-Sum", "1")
	}
}

func mustGo(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(answer), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l)
	tb.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// mustRun starts a server program that listens at addr until the test ends.
func mustRun(tb testing.TB, addr string, args ...string) {
	tb.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			cmd.Wait()
			tb.Fatalf("%s does not listen: %v\n%s", args[0], err, output.String())
		}
	}
}

func mustAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func mustFile(tb testing.TB, name, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func mustNginx(tb testing.TB, http2 bool) string {
	tb.Helper()
	program := mustFind(tb, "nginx", "nginx-light")
	addr := mustAddr(tb)
	dir := tb.TempDir()
	protocol := ""
	if http2 {
		protocol = " http2"
	}
	config := mustFile(tb, "nginx.conf", fmt.Sprintf(`
daemon off; master_process off; pid %[1]s/pid; error_log /dev/null;
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	server { listen unix:%[1]s/s; return 201 "hello"; }
	server {
		listen %[2]s%[3]s;
		location /s/200 { return 200 "hello"; }
		location /s/201 { proxy_pass http://unix:%[1]s/s; } # which reads the content first
		location /s/204 { return 204; }
		location /s/429 { add_header Retry-After 17 always; return 429; }
		location /s/503 { return 503; }
	}
}`, dir, addr, protocol))
	mustRun(tb, addr, program, "-c", config, "-e", "/dev/null")
	return addr
}

func mustNode(tb testing.TB, module string) string {
	tb.Helper()
	program := mustFind(tb, "node", "nodejs")
	addr := mustAddr(tb)
	_, port, _ := net.SplitHostPort(addr)
	script := mustFile(tb, "server.js", fmt.Sprintf(`
require(%q).createServer((req, res) => {
	req.resume();
	req.on('end', () => {
		const status = Number(req.url.slice(3));
		if (status === 429) res.setHeader('retry-after', '17');
		res.setHeader('x-limit', 'n'.repeat(50));
		res.writeHead(status);
		if (req.method === 'HEAD' || status === 204) res.end(); else { res.write('some text '.repeat(3000)); res.end('end'); }
	});
}).listen(%s, '127.0.0.1');`, module, port))
	mustRun(tb, addr, program, script)
	return addr
}

// client makes the requests of calls, rounds times.
type client func(tb testing.TB, addr string, rounds int)

// call is one of the requests that each client makes.
type call struct {
	method string
	status int
	body   string
}

var calls = []call{
	{"GET", 200, ""}, {"GET", 429, ""}, {"HEAD", 429, ""}, {"POST", 201, "some content"}, {"GET", 204, ""}, {"GET", 503, ""},
}

func (c call) url(addr string) string { return fmt.Sprintf("http://%s/s/%d", addr, c.status) }

// pairs is what is to be seen of the calls.
func pairs() (out []string) {
	for _, c := range calls {
		out = append(out, fmt.Sprintf("%s /s/%d %d", c.method, c.status, c.status))
	}
	return out
}

// goClient makes the calls of a round at once.
func goClient(http2, trailers bool) client {
	return func(tb testing.TB, addr string, rounds int) {
		tb.Helper()
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetUnencryptedHTTP2(http2)
		defer transport.CloseIdleConnections()
		for range rounds {
			var wg sync.WaitGroup
			for _, c := range calls {
				wg.Go(func() {
					req, err := http.NewRequestWithContext(context.Background(), c.method, c.url(addr), strings.NewReader(c.body))
					if err != nil {
						tb.Error(err)
						return
					}
					if c.body != "" {
						req.ContentLength = -1 // chunked in HTTP/1
						if trailers {
							req.Trailer = http.Header{"X-Trailer": {"t"}}
						}
					}
					resp, err := transport.RoundTrip(req)
					if err != nil {
						tb.Error(err)
						return
					}
					defer resp.Body.Close()
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != c.status {
						tb.Errorf("status %d, %v; want %d", resp.StatusCode, err, c.status)
					}
				})
			}
			wg.Wait()
		}
	}
}

// mustDo runs a client program to its end.
func mustDo(tb testing.TB, args ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		tb.Errorf("%s: %v\n%s", args[0], err, output)
	}
}

// curlClient makes each call with a process of its own: curl 7.88 cannot use a
// connection twice where it knows beforehand that it is HTTP/2.
func curlClient(version string) client {
	return func(tb testing.TB, addr string, rounds int) {
		tb.Helper()
		program := mustFind(tb, "curl", "curl")
		for i := range rounds * len(calls) {
			c := calls[i%len(calls)]
			args := []string{program, "-sS", version, "-o", "/dev/null", c.url(addr)}
			switch {
			case c.method == "HEAD":
				args = append(args, "-I")
			case c.body != "":
				args = append(args, "-d", c.body)
			}
			mustDo(tb, args...)
		}
	}
}

func nodeClient(tb testing.TB, addr string, rounds int) {
	tb.Helper()
	var list strings.Builder
	for _, c := range calls {
		fmt.Fprintf(&list, "[%q, '/s/%d', %q],", c.method, c.status, c.body)
	}
	script := mustFile(tb, "client.js", fmt.Sprintf(`
const session = require('http2').connect('http://%s');
const call = ([method, path, body]) => new Promise((done, fail) => {
	const req = session.request({':method': method, ':path': path, 'x-client': 'node'});
	req.on('error', fail); req.on('end', done); req.resume(); if (body) req.end(body);
});
(async () => {
	for (let i = 0; i < %d; i++) await Promise.all([%s].map(call));
	session.close();
})();`, addr, rounds, list.String()))
	mustDo(tb, mustFind(tb, "node", "nodejs"), script)
}

func pythonClient(tb testing.TB, addr string, rounds int) {
	tb.Helper()
	const program = "/usr/bin/python3"
	if err := exec.Command(program, "-c", "import h2, httpx").Run(); err != nil {
		tb.Skip("needs python3-httpx and python3-h2: apt-get install python3-httpx python3-h2")
	}
	var list strings.Builder
	for _, c := range calls {
		fmt.Fprintf(&list, "(%q, %q, %q),", c.method, c.url(addr), c.body)
	}
	script := mustFile(tb, "client.py", fmt.Sprintf(`
import asyncio, httpx
async def main():
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        for i in range(%d):
            await asyncio.gather(*[client.request(m, u, content=b.encode()) for m, u, b in [%s]])
asyncio.run(main())
`, rounds, list.String()))
	mustDo(tb, program, script)
}

// Every request and answer that real clients and servers exchange is found, with
// its method, path, status and fields, wherever the bytes were cut.
func TestRealPeers(t *testing.T) {
	type origin struct {
		name  string
		start func(tb testing.TB) string
		http2 bool
	}
	origins := []origin{
		{"go", mustGo, true},
		{"nginx", func(tb testing.TB) string { return mustNginx(tb, true) }, true},
		{"node", func(tb testing.TB) string { return mustNode(tb, "http2") }, true},
		{"go/1", mustGo, false},
		{"nginx/1", func(tb testing.TB) string { return mustNginx(tb, false) }, false},
		{"node/1", func(tb testing.TB) string { return mustNode(tb, "http") }, false},
	}
	clients := []struct {
		name  string
		run   client
		http2 bool
	}{
		{"go", goClient(true, false), true},
		{"go with trailers", goClient(true, true), true},
		{"curl", curlClient("--http2-prior-knowledge"), true},
		{"node", nodeClient, true},
		{"python", pythonClient, true},
		{"go/1", goClient(false, true), false},
		{"curl/1", curlClient("--http1.1"), false},
	}
	const rounds = 4
	for _, o := range origins {
		t.Run("origin "+o.name, func(t *testing.T) {
			addr := o.start(t)
			for _, c := range clients {
				if c.http2 != o.http2 || o.name == "nginx" && c.name == "go with trailers" { // nginx 1.22 takes none
					continue
				}
				for _, size := range []int{61, 16 << 10} {
					if c.name == "python" && size > 61 {
						continue // it takes seconds
					}
					t.Run(fmt.Sprintf("client %s, %d bytes at once", c.name, size), func(t *testing.T) {
						p := mustPump(t, addr, size)
						c.run(t, p.addr(), rounds)
						p.wait(t, c.http2, rounds, pairs()...)
					})
				}
			}
		})
	}
}

// Thousands of requests on few connections, by a client that keeps many streams
// open at once.
func TestManyStreams(t *testing.T) {
	const requests = 2000
	program := mustFind(t, "h2load", "nghttp2-client")
	p := mustPump(t, mustNginx(t, true), 5000)
	mustDo(t, program, "-n", strconv.Itoa(requests), "-c", "2", "-m", "50", "http://"+p.addr()+"/s/429")
	p.wait(t, true, requests, "GET /s/429 429")
}

// What a server pushes has streams of its own and is no answer to a request, but
// its promises change the table.
func TestPush(t *testing.T) {
	program := mustFind(t, "nghttpd", "nghttp2-server")
	client := mustFind(t, "nghttp", "nghttp2-client")
	dir := t.TempDir()
	for _, name := range []string{"index.html", "style.css"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(name, 100)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := mustAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	mustRun(t, addr, program, "--no-tls", "--address", host, "--htdocs", dir, "--push", "/index.html=/style.css", port)
	p := mustPump(t, addr, 100)
	url := "http://" + p.addr()
	mustDo(t, client, "--null-out", url+"/index.html", url+"/index.html?again")
	p.wait(t, true, 2, "GET /index.html 200")
	if p.pushed == 0 {
		t.Error("nothing was pushed: the test tests nothing")
	}
}
