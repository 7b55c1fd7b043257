// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mounts of the machine, in order. Unlike many a host it has cgroup v2 and no
// other hierarchy.
var mounts = []struct{ kind, at, options string }{
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"devtmpfs", "/dev", ""},
	{"devpts", "/dev/pts", "ptmxmode=0666"},
	{"tmpfs", "/dev/shm", ""},
	{"tmpfs", "/run", ""},
	{"tmpfs", "/tmp", ""},
	{"cgroup2", "/sys/fs/cgroup", ""},
	{"bpf", "/sys/fs/bpf", ""},
	{"tracefs", "/sys/kernel/tracing", ""},
	{"debugfs", "/sys/kernel/debug", ""},
}

func mountAll() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	return os.Chmod("/tmp", 0o1777)
}

// openPort opens a serial port that passes on every byte as it is.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	mode, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err == nil {
		mode.Iflag, mode.Oflag, mode.Lflag = 0, 0, 0
		err = unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, mode)
	}
	if err != nil {
		port.Close()
		return nil, fmt.Errorf("set up %s: %w", path, err)
	}
	return port, nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}

// setUp does what a distribution's own init has done by the time that programs run.
func setUp() error {
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	// As systemd does: 524288 is what Go programs raise their soft limit to.
	limit := unix.Rlimit{Cur: 1024, Max: 524288}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set limit of files: %w", err)
	}
	return nil
}
