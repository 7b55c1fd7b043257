// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// newMaker serves sockets from a goroutine, as the process of startMaker does.
func newMaker(t *testing.T, count int) func() ([]int, error) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serveSockets(pair[1], count) }()
	t.Cleanup(func() {
		if err := unix.Close(pair[0]); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("maker of sockets: %v", err)
		}
		if err := unix.Close(pair[1]); err != nil {
			t.Error(err)
		}
	})
	return func() ([]int, error) { return askSockets(pair[0]) }
}

func TestTimeConnects(t *testing.T) {
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenBacklog(loopback(portOf(addr)))
	if err != nil {
		t.Fatal(err)
	}
	kind := connectKind{"native", newMaker(t, connectSockets), loopback(portOf(addr))}
	drains := []func() error{l.drain}
	rows, err := connectRounds(2, drains, 0, []connectKind{kind, {"again", kind.sockets, kind.to}})
	if err != nil {
		t.Fatal(err)
	}
	for n, name := range []string{"native", "again"} {
		r := rows[n]
		if r.name != name || len(r.time) != 2 || r.time[0] <= 0 || r.time[1] <= 0 || r.native[0] != rows[0].time[0] {
			t.Errorf("got %+v, want two rounds of %s", r, name)
		}
	}
	if _, _, err := unix.Accept(int(l)); err != unix.EAGAIN {
		t.Errorf("after the rounds: accept says %v, want that nobody waits", err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if got, err := timeConnects([]connectKind{kind}, nil, 0); err == nil {
		t.Errorf("a closed port: got %v, want an error", got)
	}
}

func TestAskSocketsRefuses(t *testing.T) {
	if got, err := newMaker(t, connectSockets-1)(); err == nil {
		t.Errorf("too few sockets: got %v, want an error", got)
	}
}

func TestMiddle(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want string
	}{
		{[]float64{3}, "3 (3–3)"},
		{[]float64{9, 1, 2}, "2 (1–9)"},
		{[]float64{8, 1, 2, 3, 4, 5, 6, 7}, "4 (3–6)"}, // 4.5
	} {
		if got := middle("%.0f", tc.in); got != tc.want {
			t.Errorf("middle of %v: got %s, want %s", tc.in, got, tc.want)
		}
	}
}
