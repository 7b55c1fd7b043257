// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 golang.org/x/net/http2 serves and speaks HTTP/2 on connections that a test made itself, and has settings that net/http has not.

package proxy

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// recorded is a connection that keeps what it reads.
type recorded struct {
	net.Conn
	all memory
}

func (r *recorded) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	_, _ = r.all.Write(b[:n])
	return n, err
}

// An origin gets, byte for byte, what each client says: settings, windows,
// priorities, the order of fields and how they are compressed.
func TestH2SameOnTheWire(t *testing.T) {
	const node = `
const c = require('http2').connect(process.argv[1], {settings: {headerTableSize: 8192, initialWindowSize: 1234567, maxConcurrentStreams: 7, enablePush: false}});
const get = (p, f) => { const r = c.request({':path': p, ':authority': 'origin.test', 'z': 'last first', 'a': 'b'}); r.resume(); r.on('end', f); };
c.on('remoteSettings', () => setTimeout(() => get('/1', () => get('/2', () => get('/1', () => c.close()))), 50));`
	for name, args := range map[string][]string{
		"curl":   {"curl", "-sS", "--http2-prior-knowledge", "-o", "/dev/null", "-H", "Host: origin.test", "-H", "B: 1", "-H", "A: 2", "-A", "agent"},
		"nghttp": {"nghttp", "-n", "-H", ":authority: origin.test", "-H", "b: 1", "-p", "200"},
		"node":   {"node", "-e", node},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skipf("%s is not installed", args[0])
			}
			got := make(chan string, 1)
			dest := origin(t, func(c *net.TCPConn) {
				r := &recorded{Conn: c}
				new(http2.Server).ServeConn(r, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "answer")
				}), BaseConfig: &http.Server{}})
				got <- r.all.String()
			})
			var said memory
			at := tappedDoor(t, start(t, everyone(plenty)), dest, &said)
			program(t, args[0], append(args[1:len(args):len(args)], "http://"+at.String()+"/path")...)
			select {
			case saw := <-got:
				if want := said.String(); saw != want || len(want) < 100 {
					t.Errorf("the client said:\n%q\nthe origin got:\n%q", want, saw)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the connection does not end")
			}
		})
	}
}
