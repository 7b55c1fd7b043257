// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// connectCommand makes this program a client that only connects:
// bench connect ADDRESS COUNT. It prints the median of its connect() calls.
const connectCommand = "connect"

// connectCalls is how many calls one round of one case makes.
const connectCalls = 5000

// connectResult has the median connect() of each round of each case.
type connectResult struct {
	names  []string
	rounds [][]time.Duration
}

// measureConnect times connect() as a native process has it, as one in the
// daemon's scope has it for a destination that no budget names, and for one
// that is led to the proxy.
func measureConnect(ctx context.Context, subjects []*subject, rounds int) (connectResult, error) {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	j := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameNginx })
	if i < 0 || j < 0 {
		return connectResult{}, nil
	}
	named, unnamed := subjects[i].http, subjects[j].http
	cases := []struct {
		name, addr string
		cgroup     *os.File
	}{
		{"native", unnamed, nil},
		{"in scope, not named", unnamed, subjects[i].cgroup},
		{"named, redirected", named, subjects[i].cgroup},
	}
	self, err := os.Executable()
	if err != nil {
		return connectResult{}, fmt.Errorf("finding this program: %w", err)
	}
	res := connectResult{rounds: make([][]time.Duration, len(cases))}
	for _, c := range cases {
		res.names = append(res.names, c.name)
	}
	before, err := subjects[i].counters(ctx)
	if err != nil {
		return res, err
	}
	// The differences are small: many short rounds see the same machine.
	for range rounds * 5 {
		for n, c := range cases {
			out, err := output(ctx, c.cgroup, nil, self, connectCommand, c.addr, strconv.Itoa(connectCalls))
			if err != nil {
				return res, fmt.Errorf("connect(), %s: %w", c.name, err)
			}
			ns, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				return res, fmt.Errorf("connect(), %s: %w", c.name, err)
			}
			res.rounds[n] = append(res.rounds[n], time.Duration(ns))
		}
	}
	after, err := subjects[i].counters(ctx)
	if err != nil {
		return res, err
	}
	if got, want := after.redirected-before.redirected, connectCalls*len(res.rounds[0]); got != want {
		return res, fmt.Errorf("connect(): egressd took %d connections, want the %d that are named", got, want)
	}
	for n, c := range cases {
		log.Printf("connect(), %s: %v", c.name, res.rounds[n])
	}
	return res, nil
}

// timeConnects connects count times and returns the median time of connect().
// Each connection is reset at once, so that none lingers, and followed by a
// short spin, so that whoever accepts keeps up.
func timeConnects(addr string, count int) (time.Duration, error) {
	runtime.LockOSThread()
	dest, err := netip.ParseAddrPort(addr)
	if err != nil {
		return 0, err
	}
	sa := &unix.SockaddrInet4{Port: int(dest.Port()), Addr: dest.Addr().As4()}
	times := make([]time.Duration, 0, count)
	for range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("making a socket: %w", err)
		}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return 0, fmt.Errorf("asking for a reset: %w", err)
		}
		start := time.Now()
		err = unix.Connect(fd, sa)
		times = append(times, time.Since(start))
		if err != nil {
			return 0, fmt.Errorf("connecting to %s: %w", addr, err)
		}
		if err := unix.Close(fd); err != nil {
			return 0, fmt.Errorf("closing: %w", err)
		}
		for start := time.Now(); time.Since(start) < 30*time.Microsecond; {
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// connectMain is the program that connectCommand makes of this one.
func connectMain(addr, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 {
		return fmt.Errorf("connect: %q is no count", count)
	}
	d, err := timeConnects(addr, n)
	if err != nil {
		return err
	}
	fmt.Println(d.Nanoseconds())
	return nil
}
