// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// proxied sends requests by a proxy, as programs in Go do.
func proxied(proxyURL, target string, count int) error {
	proxy, err := url.Parse(proxyURL)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy),
		// A TLS connection is one unit of its budget, whatever goes over it.
		DisableKeepAlives: strings.HasPrefix(target, "https:"),
	}}
	for range count {
		resp, err := client.Get(target)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("got %s", resp.Status)
		}
	}
	return nil
}

// Scripts have the proxy's URL, that of the origin and the number of requests as
// arguments, and fail unless each is answered with 200.
const (
	requestsScript = `
import requests, sys
proxy, url, count = sys.argv[1:]
session = requests.Session() if url.startswith("http:") else requests
for _ in range(int(count)):
    session.get(url, proxies={"http": proxy, "https": proxy}, timeout=30).raise_for_status()
`
	httpxScript = `
import httpx, sys
proxy, url, count = sys.argv[1:]
for _ in range(int(count)):
    httpx.get(url, proxies=proxy, timeout=30).raise_for_status()
`
	aiohttpScript = `
import aiohttp, asyncio, sys
proxy, url, count = sys.argv[1:]
async def main():
    connector = aiohttp.TCPConnector(force_close=url.startswith("https:"))
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:
        for _ in range(int(count)):
            async with session.get(url, proxy=proxy) as answer:
                await answer.read()
asyncio.run(main())
`
	scrapyScript = `
import scrapy, sys
from scrapy.crawler import CrawlerProcess
proxy, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
got = []
class Shop(scrapy.Spider):
    name = "shop"
    def start_requests(self):
        for _ in range(count):
            yield scrapy.Request(url, meta={"proxy": proxy}, headers={"Connection": "close"}, dont_filter=True)
    def parse(self, answer):
        got.append(answer.status)
crawler = CrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "RETRY_ENABLED": False})
crawler.crawl(Shop)
crawler.start()
assert got == [200] * count, got
`
	nodeScript = `
import http from "node:http";
import https from "node:https";
import tls from "node:tls";
const [proxy, target, count] = [new URL(process.argv[1]), new URL(process.argv[2]), Number(process.argv[3])];
const secure = target.protocol === "https:";
class Tunnel extends (secure ? https : http).Agent {
  createConnection(options, done) {
    const path = options.host + ":" + options.port;
    http.request({ host: proxy.hostname, port: proxy.port, method: "CONNECT", path, headers: { Host: path } })
      .on("connect", (answer, socket) => {
        if (answer.statusCode !== 200) done(new Error("CONNECT: " + answer.statusCode));
        else done(null, secure ? tls.connect({ socket, servername: options.host }) : socket);
      })
      .on("error", done).end();
  }
}
const agent = process.argv[4] === "tunnel" ? new Tunnel({ keepAlive: !secure, maxSockets: 1 }) : null;
for (let i = 0; i < count; i++) {
  await new Promise((done, failed) => {
    const request = agent
      ? (secure ? https : http).request(target, { agent })
      : http.request({ host: proxy.hostname, port: proxy.port, path: target.href, headers: { Host: target.host } });
    request.on("response", (answer) => {
      answer.resume();
      answer.on("end", () => answer.statusCode === 200 ? done() : failed(new Error(answer.statusCode)));
    }).on("error", failed).end();
  });
}
process.exit(0);
`
)

// python is the first interpreter that has the modules of the scripts.
func python(t testing.TB) string {
	t.Helper()
	const ask = "import sys\nfrom importlib.util import find_spec\nsys.exit(any(find_spec(m) is None for m in sys.argv[1:]))"
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", ask, "requests", "socks", "httpx", "socksio", "aiohttp", "scrapy").Run() == nil {
			return name
		}
	}
	t.Fatal("no python3 has requests, httpx, aiohttp and scrapy: run scripts/install-deps.sh test")
	return ""
}

// curlLoop has a process, and so a connection, for each request.
func curlLoop(flags ...string) func(proxy, url string, count int) []string {
	return func(proxy, url string, count int) []string {
		const loop = `n=$1 proxy=$2; shift 2; while [ "$n" -gt 0 ]; do curl -sS -f -m 60 -o /dev/null -x "$proxy" "$@" || exit; n=$((n - 1)); done`
		return append([]string{"sh", "-c", loop, "loop", strconv.Itoa(count), proxy}, append(slices.Clone(flags), url)...)
	}
}

// TestProxiedClients runs clients that know a proxy and nothing of egressd, many
// at a time: each reaches the origin by its own exit, and all of them together
// keep the exit's budget.
func TestProxiedClients(t *testing.T) {
	t.Parallel()
	const (
		rate  = 2
		count = 3 // requests of each client
	)
	needRoot(t)
	py := python(t)
	script := func(text string) func(proxy, url string, count int) []string {
		return func(proxy, url string, count int) []string {
			return []string{py, "-c", text, proxy, url, strconv.Itoa(count)}
		}
	}
	node := func(mode string) func(proxy, url string, count int) []string {
		return func(proxy, url string, count int) []string {
			return []string{"node", "--input-type=module", "-e", nodeScript, proxy, url, strconv.Itoa(count), mode}
		}
	}
	goClient := func(proxy, url string, count int) []string {
		return []string{"env", roleName + "=" + roleProxied, here.self, proxy, url, strconv.Itoa(count)}
	}
	keepAlive := func(proxy, url string, count int) []string {
		args := []string{"curl", "-sS", "-f", "-m", "60", "-x", proxy}
		for range count {
			args = append(args, "-o", "/dev/null", url)
		}
		return args
	}
	l := newLab(t)
	l.addProxies(t, squid, tinyproxy, haproxy, dante, microsocks, socks4a)
	scope := newGroup(t)
	d := l.newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: %d/s, queue: {max_wait: 60s}}", originHost, rate))
	log := d.follow(t)

	clients := []struct {
		name    string // the path that it asks for
		exit    proxyKind
		proxy   string // scheme of the proxy's URL
		origin  string // scheme
		command func(proxy, url string, count int) []string
	}{
		{"curl-http", squid, "http", "http", curlLoop()},
		{"curl-keepalive", squid, "http", "http", keepAlive},
		{"curl-proxy-user", squid, "http", "http", curlLoop("--proxy-user", "somebody:secret")},
		{"curl-proxytunnel", tinyproxy, "http", "http", curlLoop("-p")},
		{"curl-tunnel-keepalive", tinyproxy, "http", "http", func(proxy, url string, count int) []string {
			return append(keepAlive(proxy, url, count), "-p")
		}},
		{"curl-https", haproxy, "http", "https", curlLoop()},
		{"curl-socks5", dante, "socks5", "http", curlLoop()},
		{"curl-socks5-https", dante, "socks5", "https", curlLoop()},
		{"curl-socks5h", microsocks, "socks5h", "http", curlLoop()},
		{"curl-socks4a", socks4a, "socks4a", "http", curlLoop()},
		{"curl-socks4a-https", socks4a, "socks4a", "https", curlLoop()},
		{"requests-http", haproxy, "http", "http", script(requestsScript)},
		{"requests-https", squid, "http", "https", script(requestsScript)},
		{"requests-socks5", dante, "socks5", "http", script(requestsScript)},
		{"requests-socks5h", microsocks, "socks5h", "https", script(requestsScript)},
		{"httpx-http", tinyproxy, "http", "http", script(httpxScript)},
		{"httpx-https", tinyproxy, "http", "https", script(httpxScript)},
		{"httpx-socks5", microsocks, "socks5", "http", script(httpxScript)},
		{"aiohttp-http", squid, "http", "http", script(aiohttpScript)},
		{"aiohttp-https", haproxy, "http", "https", script(aiohttpScript)},
		{"scrapy-http", haproxy, "http", "http", script(scrapyScript)},
		{"scrapy-https", tinyproxy, "http", "https", script(scrapyScript)},
		{"go-http", haproxy, "http", "http", goClient},
		{"go-https", squid, "http", "https", goClient},
		{"go-socks5", dante, "socks5", "http", goClient},
		{"go-socks5-https", microsocks, "socks5", "https", goClient},
		{"node-http", squid, "http", "http", node("plain")},
		{"node-tunnel", tinyproxy, "http", "http", node("tunnel")},
		{"node-https", haproxy, "http", "https", node("tunnel")},
	}
	env := []string{
		"http_proxy=", "https_proxy=", "all_proxy=", "no_proxy=", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=", "NO_PROXY=",
		"SSL_CERT_FILE=" + l.trust, "REQUESTS_CA_BUNDLE=" + l.trust, "CURL_CA_BUNDLE=" + l.trust, "NODE_EXTRA_CA_CERTS=" + l.trust,
	}
	var all []*process
	for _, c := range clients {
		e := l.exit(t, c.exit.String())
		all = append(all, l.start(t, l.clients, how{in: scope, env: env},
			c.command(c.proxy+"://"+hostPort(e.near, e.port), c.origin+"://"+originHost+"/"+c.name, count)...))
	}
	end := time.Now().Add(60 * time.Second)
	for i, p := range all {
		if status := p.wait(t, time.Until(end)); status != 0 {
			t.Errorf("%s: got exit status %d\n%s%s", clients[i].name, status, p.stdout.String(), p.stderr.String())
		}
	}

	for _, c := range clients {
		e := l.exit(t, c.exit.String())
		seen := l.sightings(t, "/"+c.name)
		// One name may begin another.
		seen = slices.DeleteFunc(seen, func(s sighting) bool { return s.path != "/"+c.name })
		if len(seen) != count {
			t.Errorf("%s: the origin saw %d requests, want %d", c.name, len(seen), count)
		}
		for _, s := range seen {
			if s.from != e.far || s.status != 200 {
				t.Errorf("%s: the origin saw %+v, want status 200 and address %s", c.name, s, e.far)
			}
		}
	}
	lanes := exitLanes(t, d)
	from := byAddress(l.sightings(t, "/"))
	for _, e := range l.exits {
		mustKeep(t, e.name, from[e.far], rate)
		lane := lanes["shop/"+originHost+"/"+e.name]
		if lane.Exit != e.name || lane.Destination != originHost || lane.Granted != len(from[e.far]) || lane.Limited != 0 || lane.Refused != 0 {
			t.Errorf("lane of exit %s: got %+v, want %d granted, as the origin saw", e.name, lane, len(from[e.far]))
		}
	}
	mustPace(t, log, rate, math.MaxInt64)
	if t.Failed() {
		t.Logf("lanes:\n%s", d.ask(t, "lanes"))
	}
}
