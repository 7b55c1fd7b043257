// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/fleet"
)

// slowAccept is an origin whose queue of connections is full at first: the
// kernel drops the SYN of the next client, which sends it again after a second.
const slowAccept = `
import signal, socket, sys, threading, time
signal.signal(signal.SIGUSR1, lambda *_: None)
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(0)
port = s.getsockname()[1]
full = [socket.socket() for _ in range(2)]
for c in full:
    c.setblocking(False)
    c.connect_ex(("127.0.0.1", port))
time.sleep(0.2)
print(port, flush=True)
signal.pause()
for c in full: c.close()
while True:
    c, _ = s.accept()
    def answer(c=c):
        if c.recv(4096):
            print("got %d" % time.monotonic_ns(), flush=True)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        c.close()
    threading.Thread(target=answer).start()
`

// TestFleetLateConnect has a request whose connection takes longer than the unit
// that it was given lives: it is given another before it is written, as other
// hosts have the time of the first.
func TestFleetLateConnect(t *testing.T) {
	t.Parallel()
	store := freePort(t)
	waitListening(t, start(t, how{}, "redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(store), "--save", "", "--dir", shortDir(t)),
		"127.0.0.1", store)
	origin := start(t, how{}, "python3", "-c", slowAccept)
	var port int
	waitFor(t, 10*time.Second, "the origin's port", func() bool {
		_, err := fmt.Sscan(origin.stdout.String(), &port)
		return err == nil
	})
	d := prepareDaemon(t, newGroup(t))
	d.extra = fmt.Sprintf("fleet: {redis: \"redis://127.0.0.1:%d\"}\n", store)
	d.write(t, fmt.Sprintf("  - {name: shop, rate: 50/s, match: {hosts: [127.0.0.1], ports: [%d]}}", port))
	d.start(t)
	log := d.follow(t)
	p := start(t, how{in: d.scope}, "curl", "-sS", "-m", "30", fmt.Sprintf("http://127.0.0.1:%d/", port))
	var first []event
	waitFor(t, 10*time.Second, "the request to be let go", func() bool {
		first = dispatched(t, log)
		return len(first) > 0
	})
	time.Sleep(200 * time.Millisecond)
	origin.signal(t, unix.SIGUSR1)
	p.mustSucceed(t, 40*time.Second)
	var got int64
	waitFor(t, 5*time.Second, "the origin to tell", func() bool {
		_, err := fmt.Sscanf(strings.TrimPrefix(origin.stdout.String(), fmt.Sprintln(port)), "got %d", &got)
		return err == nil
	})
	all := dispatched(t, log)
	took := time.Duration(got - first[0].Mono)
	t.Logf("let go %d times; the origin had it %v after the first, %v after the last", len(all), took, time.Duration(got-all[len(all)-1].Mono))
	if took < fleet.Term {
		t.Fatalf("the connection took %v: this test shows nothing", took)
	}
	if last := time.Duration(got - all[len(all)-1].Mono); len(all) < 2 || last > fleet.Term {
		t.Errorf("written %v after it was let go for the last of %d times", last, len(all))
	}
}

// dispatched are the events by which requests were let go.
func dispatched(t testing.TB, log *process) (all []event) {
	t.Helper()
	for _, ev := range events(t, log) {
		if ev.Kind == "dispatch" {
			all = append(all, ev)
		}
	}
	return all
}
