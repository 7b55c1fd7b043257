// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// change says what may have changed. A set.
type change uint32

const (
	devicesChanged change = 1 << iota // devices, qdiscs, filters
	routesChanged
	allChanged = devicesChanged | routesChanged
)

// watcher listens to rtnetlink in the namespace in which it was made.
type watcher struct {
	socket *os.File
	seen   atomic.Uint32 // of change
	// wake has room for one: something was seen.
	wake chan struct{}
	done chan struct{} // closed when run has ended
}

// watched are the groups of rtnetlink that tell of what a survey looks at. That
// the queues of a device became more (ethtool -L), nobody tells.
var watched = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE,
}

func newWatcher() (*watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	var groups uint32
	for _, g := range watched {
		groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	w := &watcher{
		socket: os.NewFile(uintptr(fd), "rtnetlink"),
		wake:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	go w.run()
	return w, nil
}

// close ends run.
func (w *watcher) close() error {
	err := w.socket.Close()
	<-w.done
	return err
}

// take returns what was seen since the last call.
func (w *watcher) take() change { return change(w.seen.Swap(0)) }

// note adds to what was seen, and wakes whoever waits.
func (w *watcher) note(c change) {
	if c == 0 {
		return
	}
	w.seen.Or(uint32(c))
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run reads until the socket is closed, or fails: then only the clock asks for
// another look.
func (w *watcher) run() {
	defer close(w.done)
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	for {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return
		case errors.Is(failed, unix.ENOBUFS): // some were lost
			w.note(allChanged)
		case errors.Is(failed, unix.EINTR):
		case failed != nil:
			return
		default:
			w.note(changesIn(buf[:n]))
		}
	}
}

// changesIn reads the types of the messages in a datagram of rtnetlink
// (struct nlmsghdr, linux/netlink.h).
func changesIn(data []byte) (seen change) {
	const header, align = unix.SizeofNlMsghdr, unix.NLMSG_ALIGNTO
	for len(data) >= header {
		length := int64(binary.NativeEndian.Uint32(data))
		if length < header || length > int64(len(data)) {
			return allChanged // cut off: who knows what it was
		}
		switch binary.NativeEndian.Uint16(data[4:]) {
		case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
			seen |= devicesChanged
		case unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS, unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN:
		default:
			// A device that goes down takes routes of IPv4 with it unsaid.
			seen |= allChanged
		}
		data = data[min(int64(len(data)), (length+align-1)&^(align-1)):]
	}
	return seen
}
