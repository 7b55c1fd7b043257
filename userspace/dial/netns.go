// SPDX-License-Identifier: Apache-2.0

// Package dial makes the upstream sockets: sockets that leave the host by the
// same exit as the client's own socket would have.
//
// Sockets are raw non-blocking descriptors, owned by the caller. Those of
// other network namespaces are made by visiting the namespace with the calling
// thread, so callers must have locked their goroutine to it.
package dial

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Netns is a network namespace in which sockets are made. The zero of a
// *Netns, nil, is the namespace that the daemon itself lives in.
type Netns struct {
	Cookie uint64 // SO_NETNS_COOKIE of its sockets
	Dev    uint64 // with Ino, the identity of the namespace file
	Ino    uint64

	file *os.File // the namespace
	home *os.File // the daemon's own
	refs atomic.Int64

	routes router
}

// OpenNetns opens the network namespace behind path, for instance
// /proc/123/ns/net or /run/netns/name, for one holder: see Release. An open
// namespace outlives its last process, with its devices and addresses, so let
// it go once its processes are gone.
func OpenNetns(path string) (_ *Netns, err error) {
	ns := new(Netns)
	ns.refs.Store(1)
	defer func() {
		if err != nil {
			ns.Release()
		}
	}()
	if ns.file, err = os.Open(path); err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	if ns.home, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.file.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat network namespace %s: %w", path, err)
	}
	ns.Dev, ns.Ino = st.Dev, st.Ino
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if ns.Cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return nil, fmt.Errorf("read cookie of network namespace %s: %w", path, err)
	}
	return ns, nil
}

// Retain adds a holder. Holders of nil need not be counted.
func (ns *Netns) Retain() {
	if ns != nil {
		ns.refs.Add(1)
	}
}

// Release takes a holder away; with the last one the namespace is closed.
// Sockets made in it live on. Safe for concurrent use.
func (ns *Netns) Release() {
	if ns == nil || ns.refs.Add(-1) > 0 {
		return
	}
	ns.routes.close()
	for _, f := range []*os.File{ns.file, ns.home} {
		if f != nil {
			f.Close() // opened to name a namespace: nothing is written, nothing can fail
		}
	}
}

// Socket makes a non-blocking, close-on-exec socket in the namespace. The
// thread visits the namespace for that; if it could not come back, the process
// ends, since every later socket of that thread would have the wrong exit.
func (ns *Netns) Socket(family, kind, proto int) (int, error) {
	kind |= unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	if ns == nil {
		return unix.Socket(family, kind, proto)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("enter network namespace: %w", err)
	}
	fd, err := unix.Socket(family, kind, proto)
	if back := unix.Setns(int(ns.home.Fd()), unix.CLONE_NEWNET); back != nil {
		panic("egressd: cannot return to the own network namespace: " + back.Error())
	}
	return fd, err
}

// OwnCookie is the cookie of the namespace of the calling thread.
func OwnCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read cookie of the network namespace: %w", err)
	}
	return cookie, nil
}
