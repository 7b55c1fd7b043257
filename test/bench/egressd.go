// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// startEgressd runs the daemon on a cgroup of its own, in which the clients of
// this subject are started. They ask the origin's own address: the redirect is
// all that leads them through egressd.
func (l *lab) startEgressd(ctx context.Context, binary string) (*subject, error) {
	dir, err := os.MkdirTemp("/dev/shm", "egressd-bench-keys-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for keys: %w", err)
	}
	l.onClose(func() error { return os.RemoveAll(dir) })
	pipe, err := output(ctx, nil, nil, binary, "observe", "pipe", "client", "--user", "0", "--key-dir", dir)
	if err != nil {
		return nil, fmt.Errorf("making a pipe for keys: %w", err)
	}
	s, err := l.startDaemon(ctx, binary, "egressd", dir)
	if err != nil {
		return nil, err
	}
	s.name, s.keys = nameEgressd, strings.TrimSpace(string(pipe))
	return s, nil
}

// startPlain runs another daemon on another cgroup, whose policy has budgets of
// connections to addresses and nothing else: it has no need to read DNS answers.
func (l *lab) startPlain(ctx context.Context, binary string) (err error) {
	if l.outside, err = l.makeCgroup(fmt.Sprintf("/egressd-bench-%d-outside", os.Getpid())); err != nil {
		return err
	}
	if l.empty, err = l.makeCgroup(fmt.Sprintf("/egressd-bench-%d-empty", os.Getpid())); err != nil {
		return err
	}
	if err := l.attachEmpty(l.empty); err != nil {
		return err
	}
	l.plain, err = l.startDaemon(ctx, binary, "plain", "")
	return err
}

// attachEmpty puts a program at the cgroup that lets every connect() of IPv4 pass:
// what the kernel takes to run one at all.
func (l *lab) attachEmpty(cgroup *os.File) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("loading a program that only returns: %w", err)
	}
	l.onClose(p.Close)
	at, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup.Name(), Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	if err != nil {
		return fmt.Errorf("attaching a program that only returns: %w", err)
	}
	l.onClose(at.Close)
	return nil
}

// startDaemon runs the daemon with the configuration called name.
func (l *lab) startDaemon(ctx context.Context, binary, name, keyDir string) (*subject, error) {
	s, err := l.settings()
	if err != nil {
		return nil, err
	}
	s.KeyDir = keyDir
	s.Cgroup = fmt.Sprintf("/egressd-bench-%d-%s", os.Getpid(), name)
	cgroup, err := l.makeCgroup(s.Cgroup)
	if err != nil {
		return nil, err
	}
	file, err := l.configure(name, s)
	if err != nil {
		return nil, err
	}
	ready, err := listenNotify(l.path(name + "-notify.sock"))
	if err != nil {
		return nil, err
	}
	l.onClose(ready.Close)
	env := append(os.Environ(), "NOTIFY_SOCKET="+l.path(name+"-notify.sock"))
	proc, err := l.start(name, env, binary, "run", "--config", file, "--pin-dir", "")
	if err != nil {
		return nil, err
	}
	if err := proc.wait(ctx, name+" to be ready", ready.isReady); err != nil {
		return nil, err
	}
	return &subject{http: l.origin, tls: l.tls, proc: proc, cgroup: cgroup, metrics: s.Metrics}, nil
}

// makeCgroup makes a cgroup for clients, until the lab is closed.
func (l *lab) makeCgroup(name string) (*os.File, error) {
	root, err := cgroupRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a cgroup for the clients: %w", err)
	}
	// Clients that were ended a moment ago may still be leaving.
	l.onClose(func() error { return retry(2*time.Second, func() error { return os.Remove(dir) }) })
	cgroup, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the cgroup of the clients: %w", err)
	}
	l.onClose(cgroup.Close)
	return cgroup, nil
}

// observing is the same daemon for a client that logs its keys.
func (s *subject) observing() *subject {
	o := *s
	o.name, o.observed = nameObserving, true
	return &o
}

// cgroupRoot finds where cgroup v2 is mounted, by the type of the file system.
func cgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("reading the mount table: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", errors.New("no cgroup v2 is mounted")
}

// notifySocket is what systemd would listen on.
type notifySocket struct{ conn *net.UnixConn }

func listenNotify(path string) (notifySocket, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return notifySocket{}, fmt.Errorf("listening for readiness: %w", err)
	}
	return notifySocket{conn}, nil
}

// isReady looks for READY=1 among the messages that have come.
func (n notifySocket) isReady() bool {
	buf := make([]byte, 4096)
	for {
		if err := n.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			return false
		}
		size, err := n.conn.Read(buf)
		if err != nil {
			return false
		}
		for line := range strings.Lines(string(buf[:size])) {
			if strings.TrimSpace(line) == "READY=1" {
				return true
			}
		}
	}
}

func (n notifySocket) Close() error { return n.conn.Close() }

// retry calls f until it succeeds, for at most d.
func retry(d time.Duration, f func() error) error {
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if err := f(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
