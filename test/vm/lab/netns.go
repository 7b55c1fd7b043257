// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Netns is a network namespace. It lives until Close, and as long as a process
// or socket is in it. It is safe for concurrent use, except for Close.
type Netns struct{ file *os.File }

// NewNetns makes a namespace, whose lo is up.
func NewNetns() (*Netns, error) {
	var n *Netns
	// The new namespace is that of one thread, which ends with its goroutine.
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			return err
		}
		if err := up("lo"); err != nil {
			file.Close()
			return err
		}
		n = &Netns{file}
		return nil
	})
	return n, err
}

// Close lets go of the namespace.
func (n *Netns) Close() error { return n.file.Close() }

// File is the namespace as setns(2) takes it: for processes that are to start in
// it. It belongs to n.
func (n *Netns) File() *os.File { return n.file }

// Do runs f on a thread in the namespace. What f opens belongs to it for ever;
// goroutines that f starts do not run in it.
func (n *Netns) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own that is never used again.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()                         // never unlocked: the thread dies with the goroutine
		err := errors.New("the goroutine ended early") // by runtime.Goexit, as t.Fatal does
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}

// up brings a device of the current namespace up.
func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

// OwnNetns is the namespace of the calling thread, which is the process's unless
// the caller changed it. The caller closes it.
//
// It is not that of /proc/self: the process's first thread may be one that Do
// used, which Go keeps for good.
func OwnNetns() (*Netns, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return &Netns{file}, nil
}

// Remove removes a device of this process's namespace.
func Remove(device string) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", device, err)
	}
	return nil
}

// DefaultRoute leads all that has no other route by a device of this process's
// namespace.
func DefaultRoute(device string, via netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()})
	}
	if err != nil {
		return fmt.Errorf("default route by %s: %w", device, err)
	}
	return nil
}
