// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"
)

// pythonWorker is the classic worker with its own limiter: one request, then a
// pause of a second.
const pythonWorker = `
import http.client, sys, time
host, port = sys.argv[1], int(sys.argv[2])
while True:
    try:
        c = http.client.HTTPConnection(host, port, timeout=30)
        c.request("GET", "/")
        c.getresponse().read()
        c.close()
    except OSError as e:
        print("ERR:" + type(e).__name__, flush=True)
    time.sleep(1)
`

const nodeWorker = `
const url = "http://" + process.argv[1] + "/";
for (;;) {
  try { await (await fetch(url)).text(); } catch (e) { console.log("ERR:" + (e.cause ?? e)); }
  await new Promise((done) => setTimeout(done, 1000));
}
`

// worker makes the command line of a worker that sends to host and port.
type worker func(host string, port int) []string

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

var workers = map[string]worker{
	"python": func(host string, port int) []string {
		return []string{"python3", "-c", pythonWorker, host, strconv.Itoa(port)}
	},
	"curl": func(host string, port int) []string {
		loop := `while :; do curl -sS -m 30 -o /dev/null "http://$0/" || echo ERR:$?; sleep 1; done`
		return []string{"sh", "-c", loop, hostPort(host, port)}
	},
	"wget": func(host string, port int) []string {
		// wget would try again by itself; here the loop does.
		loop := `while :; do wget -q -T 30 -t 1 -O /dev/null "http://$0/"; sleep 1; done`
		return []string{"sh", "-c", loop, hostPort(host, port)}
	},
	"go": func(host string, port int) []string {
		return []string{"env", roleName + "=" + roleLoop, here.self, hostPort(host, port)}
	},
	"node": func(host string, port int) []string {
		return []string{"node", "--input-type=module", "-e", nodeWorker, hostPort(host, port)}
	},
}

// four runs four processes of a worker and then ends them, a second later than
// after span: it takes time to start them.
func four(command []string, span time.Duration) []string {
	span += time.Second
	script := `t=$1; shift; for i in 1 2 3 4; do timeout "$t" "$@" & done; wait`
	return append([]string{"sh", "-c", script, "four", strconv.Itoa(int(span.Seconds()))}, command...)
}

// TestFourWorkers is what egressd is for. It is not parallel: the origin is
// strict to a thousandth of a second.
func TestFourWorkers(t *testing.T) {
	needRoot(t)
	const span = 10 * time.Second
	t.Run("without", func(t *testing.T) {
		origin := newNginx(t)
		p := start(t, how{in: newGroup(t)}, four(workers["python"]("localhost", origin.port), span)...)
		p.mustSucceed(t, 2*span)
		sent, limited := count(origin.receipts(t), span)
		// About 40 and 30 on a machine that has nothing else to do.
		if sent < 30 || limited < 20 {
			t.Errorf("got %d requests and %d limited, want at least 30 and 20: these workers prove nothing", sent, limited)
		}
		t.Logf("without egressd: %d requests, %d limited", sent, limited)
	})
	t.Run("with", func(t *testing.T) {
		keepsOnePerSecond(t, newNginx(t), workers["python"], "localhost", "localhost", span)
	})
}

// TestOtherWorkers is the same for other clients and families, one by one: side
// by side they would make each other late by more than egressd makes up for.
func TestOtherWorkers(t *testing.T) {
	needRoot(t)
	const span = 6 * time.Second
	for _, tt := range []struct {
		name   string
		worker string
		host   string // that the worker is given
		limit  string // host in --limit
	}{
		{"python/v4", "python", "127.0.0.1", "127.0.0.1"},
		{"python/v6", "python", "::1", "[::1]"},
		{"python/mapped", "python", "::ffff:127.0.0.1", "127.0.0.1"},
		{"curl/name", "curl", "localhost", "localhost"},
		{"curl/v4", "curl", "127.0.0.1", "127.0.0.1"},
		{"curl/v6", "curl", "::1", "[::1]"},
		{"wget/name", "wget", "localhost", "localhost"},
		{"wget/v6", "wget", "::1", "[::1]"},
		{"go/name", "go", "localhost", "localhost"},
		{"go/v4", "go", "127.0.0.1", "127.0.0.1"},
		{"go/v6", "go", "::1", "[::1]"},
		{"node/name", "node", "localhost", "localhost"},
		{"node/v4", "node", "127.0.0.1", "127.0.0.1"},
		{"node/v6", "node", "::1", "[::1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			keepsOnePerSecond(t, newNginx(t), workers[tt.worker], tt.host, tt.limit, span)
		})
	}
}

// keepsOnePerSecond runs four workers by egressd exec, and looks whether the
// origin got one request per second and limited none.
func keepsOnePerSecond(t *testing.T, origin *nginx, w worker, host, limit string, span time.Duration) {
	t.Helper()
	args := append([]string{here.bin, "exec", "--limit", fmt.Sprintf("%s:%d=1/s", limit, origin.port), "--"},
		four(w(host, origin.port), span)...)
	p := start(t, how{in: newGroup(t)}, args...)
	p.mustSucceed(t, 3*span)
	all := origin.receipts(t)
	sent, _ := count(all, span)
	if most := int(span.Seconds()) + 1; sent > most {
		t.Errorf("got %d requests in %v, want at most %d", sent, span, most)
	}
	// A busy machine may take most of the time to start them.
	if sent < 2 {
		t.Errorf("got %d requests in %v, want at least 2", sent, span)
	}
	if _, limited := count(all, time.Hour); limited != 0 {
		t.Errorf("got %d requests answered with 429, want none; received %v", limited, all)
	}
	if t.Failed() {
		t.Logf("clients said:\n%s\negressd said:\n%s", p.stdout.String(), p.stderr.String())
	}
}
