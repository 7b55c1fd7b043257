// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 golang.org/x/net/http2 serves and speaks HTTP/2 on connections that a test made itself, and has settings that net/http has not.

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
)

// nginx runs an nginx that speaks HTTP/2 without TLS until the test ends.
func nginx(t testing.TB, files map[string][]byte) netip.AddrPort {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().(*net.TCPAddr).AddrPort()
	ln.Close()
	conf := fmt.Sprintf(`daemon off; pid %[1]s/pid; error_log %[1]s/error.log; user root;
events { worker_connections 256; }
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	server { listen %[2]s http2; keepalive_requests 100000; client_max_body_size 0; location / { root %[1]s; } location /post { return 201 "posted"; } }
}`, dir, addr)
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-p", dir, "-c", filepath.Join(dir, "conf"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	waitFor(t, "nginx to listen", func() bool {
		c, err := net.Dial("tcp4", addr.String())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return addr
}

// everyone is a rule for all hosts.
func everyone(rate policy.Rate) *policy.Budget {
	rule := budget("", rate)
	rule.Match.Hosts = []policy.HostPattern{{Any: true}}
	return rule
}

// curl, nghttp and h2load speak to nginx and to Go through the proxy.
func TestH2Programs(t *testing.T) {
	file := make([]byte, 3<<20)
	for name, dest := range map[string]func(t *testing.T) netip.AddrPort{
		"nginx": func(t *testing.T) netip.AddrPort {
			return nginx(t, map[string][]byte{"file": file, "small": []byte("small")})
		},
		"Go": func(t *testing.T) netip.AddrPort {
			return h2Origin(t, nil, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/file" {
					_, _ = w.Write(file)
					return
				}
				fmt.Fprint(w, "small")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, everyone(plenty))
			url := "http://" + door(t, b, dest(t)).String()
			granted := func() uint64 { return laneOf(t, b, "test").Cell.Granted.Load() }
			t.Run("curl", func(t *testing.T) {
				for path, size := range map[string]int{"/small": 5, "/file": len(file)} {
					out := program(t, "curl", "-sS", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code} %{http_version} %{size_download}", url+path)
					if out != fmt.Sprint("200 2 ", size) {
						t.Errorf("curl: %s", out)
					}
				}
				if got := granted(); got != 2 {
					t.Errorf("%d units for 2 requests", got)
				}
			})
			t.Run("nghttp", func(t *testing.T) {
				program(t, "nghttp", "-n", "-m", "20", url+"/small")
			})
			t.Run("h2load", func(t *testing.T) {
				before := granted()
				out := program(t, "h2load", "-n", "2000", "-c", "4", "-m", "30", url+"/small")
				if !strings.Contains(out, "2000 succeeded, 0 failed") {
					t.Error(out)
				}
				if got := granted() - before; got != 2000 {
					t.Errorf("%d units for 2000 requests", got)
				}
				out = program(t, "h2load", "-n", "40", "-c", "2", "-m", "10", url+"/file")
				if !strings.Contains(out, "40 succeeded, 0 failed") {
					t.Error(out)
				}
				data := filepath.Join(t.TempDir(), "data")
				if err := os.WriteFile(data, file[:1<<20], 0o600); err != nil {
					t.Fatal(err)
				}
				out = program(t, "h2load", "-n", "30", "-c", "2", "-m", "10", "-d", data, url+"/post")
				if !strings.Contains(out, "30 succeeded, 0 failed") {
					t.Error(out)
				}
			})
			waitFor(t, "all answers to be read", func() bool { return laneOf(t, b, "test").InFlight.Load() == 0 })
		})
	}
}

// h2load at more than the budget: what is beyond it is held or answered with 429,
// and all are answered.
func TestH2ProgramsRefused(t *testing.T) {
	rule := everyone(perSecond(200))
	rule.Queue.MaxWait = 100 * time.Millisecond
	b := start(t, rule)
	url := "http://" + door(t, b, nginx(t, map[string][]byte{"small": []byte("small")})).String()
	out := program(t, "h2load", "-n", "1000", "-c", "2", "-m", "50", "-H", "x-same: "+strings.Repeat("y", 50), url+"/small")
	m := regexp.MustCompile(`status codes: (\d+) 2xx, 0 3xx, (\d+) 4xx, 0 5xx`).FindStringSubmatch(out)
	if m == nil || !strings.Contains(out, "1000 done") || !strings.Contains(out, "0 errored, 0 timeout") {
		t.Fatal(out)
	}
	if want := fmt.Sprint(laneOf(t, b, "test").Cell.Granted.Load()); m[1] != want {
		t.Errorf("%s requests answered by the origin, %s units taken; %s refused", m[1], want, m[2])
	}
}

// Node, as server and as client, with windows and settings of its own.
func TestH2Node(t *testing.T) {
	const serve = `
const s = require('http2').createServer();
s.on('stream', (st, h) => { let n = 0; st.on('data', d => n += d.length); st.on('end', () => { st.respond({':status': 200, 'x': 'y'}); st.end(String(n)); }); });
s.listen(0, '127.0.0.1', () => console.log(s.address().port));
setTimeout(() => process.exit(0), 60000);`
	const ask = `
const c = require('http2').connect('http://' + process.argv[1]);
let left = 40, ok = 0;
for (let i = 0; i < 40; i++) {
  const r = c.request({':path': '/' + i, ':method': 'POST', 'x-number': String(i)});
  let body = '', status;
  r.on('response', h => status = h[':status']); r.on('data', d => body += d);
  r.on('end', () => { if (status === 200 && body === String(i * 5000)) ok++; if (--left === 0) { console.log(ok); c.close(); } });
  r.end(Buffer.alloc(i * 5000));
}
c.on('error', e => { console.log(e); process.exit(1); });`
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	cmd := exec.Command(node, "-e", serve)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var port uint16
	if _, err := fmt.Fscan(out, &port); err != nil {
		t.Fatal(err)
	}
	dest := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	for name, shape := range map[string]func(*policy.Budget){
		"free":       func(*policy.Budget) {},
		"paced":      func(r *policy.Budget) { r.Rate = perSecond(100) },
		"one by one": func(r *policy.Budget) { r.Concurrency = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			rule := everyone(plenty)
			shape(rule)
			b := start(t, rule)
			if got := program(t, "node", "-e", ask, door(t, b, dest).String()); strings.TrimSpace(got) != "40" {
				t.Errorf("%s of 40 answered", got)
			}
		})
	}
}

// Go's client and nginx, with bodies that the origin does not want.
func TestH2NginxPost(t *testing.T) {
	b := start(t, everyone(plenty))
	client := h2Client(t, b, nginx(t, nil))
	client.Transport.(*http2.Transport).StrictMaxConcurrentStreams = true
	for i := range 30 {
		resp, err := client.Post("http://origin.test/post", "text/plain", strings.NewReader(strings.Repeat("x", i*10000)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.Body.Close(); resp.StatusCode != 201 {
			t.Errorf("request %d: status %d", i, resp.StatusCode)
		}
	}
}
