// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// What the measurement of connect() consists of: so many sockets of each kind at
// a time, so many times in a round.
const (
	connectSockets = 8
	connectBatches = 32
	connectCalls   = connectSockets * connectBatches
)

// connectRow has the median connect() of each round of one kind, and of the
// native calls of the same round.
type connectRow struct {
	name         string
	time, native []time.Duration
}

// connectKind is one kind of connection.
type connectKind struct {
	name    string
	sockets func() ([]int, error) // makes connectSockets new ones
	to      unix.Sockaddr
}

// measureConnect times connect() as a native socket has it, as one has it for
// which the kernel runs a program that does nothing, and as one in the
// daemon's scope has it for a destination that no budget names, for one that the
// kernel plane counts and grants, and for one that is led to the proxy. Where the
// policy names hosts, a program looks for DNS answers among all that is received,
// the answer to a SYN too.
//
// The differences are far smaller than what the machine does to a process from
// one moment to the next, or from one start to the next. So one thread makes all
// calls, one of each kind after the other, in an order that changes; which kind a
// socket is of was decided where it was made. Nobody accepts meanwhile.
func measureConnect(ctx context.Context, l *lab, subjects []*subject, rounds int) ([]connectRow, error) {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	if i < 0 {
		return nil, nil
	}
	egressd := subjects[i]
	free, err := freeAddr()
	if err != nil {
		return nil, err
	}
	var drains []func() error
	listen := func(to *unix.SockaddrInet4) (unix.Sockaddr, error) {
		b, err := listenBacklog(to)
		if err != nil {
			return nil, err
		}
		l.onClose(b.close)
		drains = append(drains, b.drain)
		return to, nil
	}
	// Far from the addresses that policy names, as nearly all are.
	unnamed, err := listen(&unix.SockaddrInet4{Port: portOf(free), Addr: [4]byte{127, 9, 0, 1}})
	if err != nil {
		return nil, err
	}
	counted, err := listen(loopback(portOf(l.counted)))
	if err != nil {
		return nil, err
	}
	outside, err := l.startMaker(l.outside)
	if err != nil {
		return nil, err
	}
	empty, err := l.startMaker(l.empty)
	if err != nil {
		return nil, err
	}
	inside, err := l.startMaker(l.plain.cgroup)
	if err != nil {
		return nil, err
	}
	insideHosts, err := l.startMaker(egressd.cgroup)
	if err != nil {
		return nil, err
	}

	before, err := countersOf(ctx, l.plain, egressd)
	if err != nil {
		return nil, err
	}
	rows, err := connectRounds(rounds*20, drains, 0, []connectKind{
		{"native", outside, unnamed},
		{"native, once more", outside, unnamed},
		{"a program that only returns", empty, unnamed},
		{"in scope, not named", inside, unnamed},
		{"in scope, not named, policy names hosts", insideHosts, unnamed},
		{"a budget of connections, granted", inside, counted},
	})
	if err != nil {
		return nil, err
	}
	// The proxy works while the next call is made. A pause lets it keep up.
	busy, err := connectRounds(rounds*5, drains, 30*time.Microsecond, []connectKind{
		{"native", outside, unnamed},
		{"named, redirected", insideHosts, loopback(portOf(l.origin))},
	})
	if err != nil {
		return nil, err
	}
	after, err := countersOf(ctx, l.plain, egressd)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"granted", after[0].granted - before[0].granted, connectCalls * rounds * 20},
		{"redirected", after[1].redirected - before[1].redirected, connectCalls * rounds * 5},
	} {
		if c.got != c.want {
			return nil, fmt.Errorf("connect(): egressd counted %d connections %s, want %d", c.got, c.what, c.want)
		}
	}
	return append(rows, busy[1]), nil
}

// connectRounds makes so many rounds of the kinds, of which the first is native.
func connectRounds(rounds int, drains []func() error, pause time.Duration, kinds []connectKind) ([]connectRow, error) {
	rows := make([]connectRow, len(kinds))
	for range rounds {
		medians, err := timeConnects(kinds, drains, pause)
		if err != nil {
			return nil, fmt.Errorf("connect(): %w", err)
		}
		for n, d := range medians {
			rows[n].name = kinds[n].name
			rows[n].time = append(rows[n].time, d)
			rows[n].native = append(rows[n].native, medians[0])
		}
	}
	for _, r := range rows {
		log.Printf("connect(), %s: %v", r.name, time.Duration(median(values(r.time, nanoseconds))))
	}
	return rows, nil
}

// timeConnects makes connectCalls calls of each kind, and returns the medians of
// their times. Connections are reset, so that none lingers. After each call it
// spins for the pause.
func timeConnects(kinds []connectKind, drains []func() error, pause time.Duration) ([]time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	times := make([][]time.Duration, len(kinds))
	fds := make([][]int, len(kinds))
	for range connectBatches {
		// The first ones made are the oldest, and no longer in the cache.
		for _, n := range rand.Perm(len(kinds)) {
			var err error
			if fds[n], err = kinds[n].sockets(); err != nil {
				return nil, err
			}
		}
		for i := range connectSockets {
			for _, n := range rand.Perm(len(kinds)) {
				start := time.Now()
				err := unix.Connect(fds[n][i], kinds[n].to)
				times[n] = append(times[n], time.Since(start))
				if err != nil {
					return nil, fmt.Errorf("%s: %w", kinds[n].name, err)
				}
				for start := time.Now(); time.Since(start) < pause; {
				}
			}
		}
		for _, fd := range slices.Concat(fds...) {
			if err := unix.Close(fd); err != nil {
				return nil, fmt.Errorf("closing: %w", err)
			}
		}
		for _, drain := range drains {
			if err := drain(); err != nil {
				return nil, err
			}
		}
	}
	medians := make([]time.Duration, len(kinds))
	for n := range times {
		medians[n] = time.Duration(median(values(times[n], nanoseconds)))
	}
	return medians, nil
}

func nanoseconds(d time.Duration) float64 { return float64(d) }

func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// backlog is a listener that accepts only when it is told to.
type backlog int

func listenBacklog(at *unix.SockaddrInet4) (backlog, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("making a listener: %w", err)
	}
	if err = unix.Bind(fd, at); err == nil {
		err = unix.Listen(fd, 1024)
	}
	if err != nil {
		_ = unix.Close(fd) // of no use
		return 0, fmt.Errorf("listening at %v:%d: %w", at.Addr, at.Port, err)
	}
	return backlog(fd), nil
}

// drain accepts and closes all that waits.
func (b backlog) drain() error {
	for {
		fd, _, err := unix.Accept4(int(b), unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			if err := unix.Close(fd); err != nil {
				return fmt.Errorf("closing what was accepted: %w", err)
			}
		case err == unix.EAGAIN:
			return nil
		case err != unix.ECONNABORTED && err != unix.EINTR:
			return fmt.Errorf("accepting: %w", err)
		}
	}
}

func (b backlog) close() error { return unix.Close(int(b)) }

// socketsCommand makes this program one that makes sockets for another, in the
// cgroup in which it was started: bench sockets FD COUNT.
const socketsCommand = "sockets"

// startMaker starts a process in the cgroup, and returns what asks it for
// sockets.
func (l *lab) startMaker(cgroup *os.File) (func() ([]int, error), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket for sockets: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "sockets")
	defer theirs.Close()
	if err := startIn(cgroup, theirs, self, socketsCommand, "3", fmt.Sprint(connectSockets)); err != nil {
		_ = unix.Close(pair[0]) // of no use
		return nil, err
	}
	// At which the process ends.
	l.onClose(func() error { return unix.Close(pair[0]) })
	return func() ([]int, error) { return askSockets(pair[0]) }, nil
}

// socketsMain is the program that socketsCommand makes of this one.
func socketsMain(fd, count string) error {
	f, err := strconv.Atoi(fd)
	if err != nil {
		return fmt.Errorf("sockets: %q is no descriptor", fd)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 {
		return fmt.Errorf("sockets: %q is no count", count)
	}
	return serveSockets(f, n)
}

// serveSockets makes count sockets, whose connections are reset at their end, for
// each packet from fd, until that is closed.
func serveSockets(fd, count int) error {
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting to be asked for sockets: %w", err)
		}
		if n == 0 {
			return nil
		}
		fds := make([]int, 0, count)
		for range count {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("making a socket: %w", err)
			}
			if err := unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				return fmt.Errorf("asking for a reset: %w", err)
			}
			fds = append(fds, s)
		}
		if err := unix.Sendmsg(fd, buf, unix.UnixRights(fds...), nil, 0); err != nil {
			return fmt.Errorf("sending sockets: %w", err)
		}
		for _, s := range fds {
			if err := unix.Close(s); err != nil {
				return fmt.Errorf("closing a socket: %w", err)
			}
		}
	}
}

// askSockets asks for sockets at the other end of that.
func askSockets(fd int) ([]int, error) {
	buf, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*connectSockets))
	if _, err := unix.Write(fd, buf); err != nil {
		return nil, fmt.Errorf("asking for sockets: %w", err)
	}
	n, size, _, _, err := unix.Recvmsg(fd, buf, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receiving sockets: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil || n == 0 || len(messages) != 1 {
		return nil, fmt.Errorf("receiving sockets: %d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != connectSockets {
		return nil, fmt.Errorf("receiving sockets: got %d, %v; want %d", len(fds), err, connectSockets)
	}
	return fds, nil
}
