// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// client is a program that fetches $URL, trusting $CA alone, and prints the
// body.
type client struct {
	name  string
	needs string // the program, and the Debian package if it is named otherwise
	run   string // for sh
	proto string // what it speaks to an origin with both
}

const (
	pyHTTPClient = `import http.client, os, ssl, urllib.parse
u = urllib.parse.urlsplit(os.environ["URL"])
c = http.client.HTTPSConnection(u.netloc, context=ssl.create_default_context(cafile=os.environ["CA"]))
c.request("GET", u.path); print(c.getresponse().read().decode())`
	pyRequests = `import os, requests
print(requests.get(os.environ["URL"], verify=os.environ["CA"]).text)`
	pyHTTPX = `import os, ssl, httpx
print(httpx.get(os.environ["URL"], verify=ssl.create_default_context(cafile=os.environ["CA"])).text)`
	pyAiohttp = `import asyncio, os, ssl, aiohttp
async def main():
    ctx = ssl.create_default_context(cafile=os.environ["CA"])
    async with aiohttp.ClientSession() as s, s.get(os.environ["URL"], ssl=ctx) as r:
        print(await r.text())
asyncio.run(main())`
	nodeHTTPS = `require("https").get(process.env.URL, r => r.pipe(process.stdout))`
	nodeFetch = `fetch(process.env.URL).then(r => r.text()).then(t => console.log(t), e => { console.error(e); process.exit(1) })`
	nodeHTTP2 = `const u = new URL(process.env.URL), s = require("http2").connect(u.origin);
s.on("error", e => { console.error(e); process.exit(1) });
const q = s.request({":path": u.pathname}); q.pipe(process.stdout); q.on("end", () => s.close())`
)

// debianPython is the one that has the modules of Debian's packages.
const debianPython = "/usr/bin/python3"

var clients = []client{
	{"curl, HTTP/2", "curl", `curl -sS --cacert "$CA" "$URL"`, "HTTP/2.0"},
	{"curl, HTTP/1.1", "curl", `curl -sS --http1.1 --cacert "$CA" "$URL"`, "HTTP/1.1"},
	{"curl, TLS 1.2", "curl", `curl -sS --tls-max 1.2 --cacert "$CA" "$URL"`, "HTTP/2.0"},
	{"wget", "wget", `wget -qO- --ca-certificate="$CA" "$URL"`, "HTTP/1.1"},
	{"python http.client", debianPython, debianPython + ` -c '` + pyHTTPClient + `'`, "HTTP/1.1"},
	{"python requests", debianPython, debianPython + ` -c '` + pyRequests + `'`, "HTTP/1.1"},
	{"python httpx", debianPython, debianPython + ` -c '` + pyHTTPX + `'`, "HTTP/1.1"},
	{"python aiohttp", debianPython, debianPython + ` -c '` + pyAiohttp + `'`, "HTTP/1.1"},
	{"node https", "node", `NODE_EXTRA_CA_CERTS="$CA" node -e '` + nodeHTTPS + `'`, "HTTP/1.1"},
	{"node fetch", "node", `NODE_EXTRA_CA_CERTS="$CA" node -e '` + nodeFetch + `'`, "HTTP/1.1"},
	{"node http2", "node", `NODE_EXTRA_CA_CERTS="$CA" node -e '` + nodeHTTP2 + `'`, "HTTP/2.0"},
	{
		"openssl s_client", "openssl",
		`port=${URL#https://localhost:}; { printf "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"; sleep 1; } |
			openssl s_client -quiet -verify_return_error -CAfile "$CA" -servername localhost -connect "127.0.0.1:${port%/x}"`,
		"HTTP/1.1",
	},
	{
		"gnutls-cli", "gnutls-cli",
		`port=${URL#https://localhost:}; { printf "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"; sleep 1; } |
			gnutls-cli --logfile=/dev/null --x509cafile "$CA" -p "${port%/x}" localhost`,
		"HTTP/1.1",
	},
}

// mustHave skips a test whose program is not installed.
func mustHave(tb testing.TB, names ...string) {
	tb.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			tb.Skipf("needs %s: apt-get install curl wget nodejs nginx openssl gnutls-bin python3-requests python3-httpx python3-aiohttp", name)
		}
	}
}

// fetch runs the client against url.
func (c *client) fetch(tb testing.TB, url, ca string) (out string, err error) {
	tb.Helper()
	mustHave(tb, c.needs)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", c.run)
	cmd.Env = append(os.Environ(), "URL="+url, "CA="+ca)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &stderr)
	}
	return string(stdout), err
}

// port is that of an address.
func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

func TestClientsKeepTheirShape(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			o := startOrigin(t, nil, nil)
			direct, err := c.fetch(t, "https://localhost:"+port(o.addr())+"/x", pemFile(t, o.ca.cert))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(direct, "GET /x 0 bytes over "+c.proto) {
				t.Fatalf("directly: got %q, want it over %s", direct, c.proto)
			}
			r := newRelay(t, o.addr(), o.ca.pool)
			got, err := c.fetch(t, "https://localhost:"+port(r.addr())+"/x", r.caFile)
			whys, kinds, last := r.seen()
			if err != nil {
				t.Fatalf("%v; %v %v %v", err, whys, kinds, last.Err)
			}
			if len(kinds) != 1 || kinds[0] != OK {
				t.Fatalf("got %q %v %v, want one terminated connection", whys, kinds, last.Err)
			}
			if withoutDate(got) != withoutDate(direct) {
				t.Errorf("got %q, want %q", got, direct)
			}
			seen := o.seen()
			if len(seen) != 2 {
				t.Fatalf("the origin has seen %d connections, want 2", len(seen))
			}
			mine, theirs := mustHello(t, r.sent()), mustHello(t, seen[1].hello.seen())
			if !sameShape(mine, theirs) || fmt.Sprint(mine.fragments) != fmt.Sprint(theirs.fragments) {
				t.Errorf("the origin got another hello than the client sent:\n%+v\n%+v", mine, theirs)
			}
			if bytes.Equal(mine.random, theirs.random) {
				t.Error("the random is the client's")
			}
			if a, b := mustHello(t, seen[0].hello.seen()), theirs; a.key("") != b.key("") {
				t.Errorf("the client's own hello is of another kind:\n%+v\n%+v", a, b)
			}
			if a, b := beginning(t, seen[0].plain.seen()), beginning(t, seen[1].plain.seen()); a != b {
				t.Errorf("HTTP begins otherwise: directly\n%s\nterminated\n%s", a, b)
			}
		})
	}
}

func mustHello(tb testing.TB, b []byte) *hello {
	tb.Helper()
	h, err := readHello(b)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// withoutDate drops the line of an answer that differs each time.
func withoutDate(s string) string {
	var out []string
	for line := range strings.SplitSeq(s, "\n") {
		if !strings.HasPrefix(line, "Date:") && !strings.HasPrefix(line, "- ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// beginning is what a client said first in HTTP, in a form that does not depend
// on the port: in HTTP/1.1 all of it, in HTTP/2 the frames before the first
// request and the order of its fields.
func beginning(tb testing.TB, b []byte) string {
	tb.Helper()
	const preface = http2.ClientPreface
	if !bytes.HasPrefix(b, []byte(preface)) {
		var lines []string
		for line := range strings.SplitSeq(string(b), "\r\n") {
			if !strings.HasPrefix(line, "Host:") && !strings.HasPrefix(line, "host:") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	framer := http2.NewFramer(nil, bytes.NewReader(b[len(preface):]))
	framer.ReadMetaHeaders = newDecoder()
	var out strings.Builder
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			tb.Fatalf("no request in the frames: %v\n%s", err, &out)
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			fmt.Fprintln(&out, f.Header(), f.Priority)
			for _, field := range f.Fields {
				fmt.Fprint(&out, field.Name, " ")
			}
			return out.String()
		case *http2.SettingsFrame:
			fmt.Fprintln(&out, f)
		default:
			fmt.Fprintf(&out, "%+v\n", f)
		}
	}
}

// startNginx starts nginx with a certificate of ca, as an origin.
func startNginx(tb testing.TB, ca *originCA, more string) string {
	tb.Helper()
	mustHave(tb, "nginx")
	dir := tb.TempDir()
	cert := ca.issue(tb, nil)
	writePair(tb, dir, cert)
	addr := freeAddr(tb)
	conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
	access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f;
	uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	server {
		listen %[2]s ssl http2; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem;
		%[3]s
		location / { return 200 "$request_method $uri over $server_protocol $ssl_protocol"; }
	}
}`, dir, addr, more)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o644); err != nil {
		tb.Fatal(err)
	}
	mustServe(tb, addr, "nginx", "-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", filepath.Join(dir, "nginx.conf"))
	return addr
}

func TestClientsWithNginx(t *testing.T) {
	ca := newOriginCA(t)
	for _, version := range []string{"TLSv1.3", "TLSv1.2"} {
		addr := startNginx(t, ca, "ssl_protocols "+version+";")
		for _, c := range clients {
			t.Run(version+" "+c.name, func(t *testing.T) {
				r := newRelay(t, addr, ca.pool)
				want := "GET /x over " + c.proto
				if c.name == "curl, TLS 1.2" && version == "TLSv1.3" {
					t.Skip("the two have no version in common")
				}
				got, err := c.fetch(t, "https://localhost:"+port(r.addr())+"/x", r.caFile)
				whys, kinds, last := r.seen()
				if err != nil || len(kinds) != 1 || kinds[0] != OK {
					t.Fatalf("%v; %q %v %v", err, whys, kinds, last.Err)
				}
				if !strings.Contains(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}
