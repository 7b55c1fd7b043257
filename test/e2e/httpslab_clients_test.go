// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// clientsDir has the clients of the HTTPS lab.
const clientsDir = "testdata/clients"

// labClient is a client that runs as a process of its own and sends requests
// as its library or program does by itself.
type labClient struct {
	name    string
	http2   bool // speaks HTTP/2
	shuffle bool // orders its extensions anew in each hello: its JA3 says nothing
	packs   bool // writes several requests as one record of TLS, always or now and then: they cannot be parted
	noKeys  bool // does not write its keys, whatever it is told
	noProbe bool // its TLS has no functions that a uprobe could find
	noProxy bool // knows no proxy
	command func(t testing.TB, r labRun) []string
}

// labClients are all clients of the lab.
var labClients = []labClient{
	{name: "curl-h1", command: labScript("curl.sh", "h1")},
	{name: "curl-h2", http2: true, command: labScript("curl.sh", "h2")},
	{name: "wget", command: labScript("wget.sh")},
	{name: "http.client", command: labPython("http_client.py")},
	{name: "asyncio", command: labPython("asyncio_streams.py")},
	{name: "requests", command: labPython("with_requests.py")},
	{name: "httpx-h1", command: labPython("with_httpx.py", "h1")},
	{name: "httpx-h2", http2: true, packs: true, command: labPython("with_httpx.py", "h2")},
	{name: "aiohttp", command: labPython("with_aiohttp.py")},
	// Its TLS is pyOpenSSL's, which does not look for SSLKEYLOGFILE.
	{name: "scrapy", noKeys: true, command: labPython("with_scrapy.py")},
	{name: "node-https", command: labNode("node_https.mjs")},
	{name: "node-fetch", noProxy: true, command: labNode("node_fetch.mjs")},
	{name: "node-http2", http2: true, packs: true, command: labNode("node_http2.mjs")},
	{name: "go-h1", command: labGo("h1")},
	{name: "go-h2", http2: true, command: labGo("h2")},
	{name: "chromium", http2: true, shuffle: true, noProbe: true, command: labScript("chromium.sh")},
}

// mustLabClient is the client of that name.
func mustLabClient(t testing.TB, name string) labClient {
	t.Helper()
	for _, c := range labClients {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("the lab has no client %s", name)
	return labClient{}
}

// labArgs are the arguments of every client.
func labArgs(r labRun, more []string) []string {
	return append([]string{r.base(), strconv.Itoa(r.count), strconv.Itoa(r.width)}, more...)
}

func labScript(name string, more ...string) func(testing.TB, labRun) []string {
	return func(_ testing.TB, r labRun) []string {
		return append([]string{"sh", filepath.Join(clientsDir, name)}, labArgs(r, more)...)
	}
}

func labPython(name string, more ...string) func(testing.TB, labRun) []string {
	return func(t testing.TB, r labRun) []string {
		t.Helper()
		// Files of byte code are not written beside the sources.
		return append([]string{labInterpreter(t), "-B", filepath.Join(clientsDir, name)}, labArgs(r, more)...)
	}
}

func labNode(name string) func(testing.TB, labRun) []string {
	return func(_ testing.TB, r labRun) []string {
		return append([]string{"node", filepath.Join(clientsDir, name)}, labArgs(r, nil)...)
	}
}

func labGo(protocol string) func(testing.TB, labRun) []string {
	return func(t testing.TB, r labRun) []string {
		t.Helper()
		return append([]string{mustGoClient(t)}, labArgs(r, []string{protocol})...)
	}
}

// labInterpreter is the first Python that has the modules of the clients.
func labInterpreter(t testing.TB) string {
	t.Helper()
	const ask = "import sys\nfrom importlib.util import find_spec\nsys.exit(any(find_spec(m) is None for m in sys.argv[1:]))"
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", ask, "requests", "httpx", "h2", "aiohttp", "scrapy").Run() == nil {
			return name
		}
	}
	t.Fatal("no python3 has requests, httpx, h2, aiohttp and scrapy: run scripts/install-deps.sh test")
	return ""
}
