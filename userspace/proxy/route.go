// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/dial"
)

// localExit is the exit of a connection that goes to no proxy of the policy:
// what the hook knew of the client's socket tells it or else, by the address
// and device that it did not have yet, its route.
func (c *conn) localExit() string {
	f := &c.flow
	p := c.l.p.cfg.Engine.Policy()
	if f.Exit != policy.DirectExit || !p.ExitsByRoute() {
		return f.Exit
	}
	route, err := c.route()
	if err != nil {
		return f.Exit // the upstream connection will show why
	}
	device := ""
	if c.ns == nil { // the names of the policy file are those of the daemon's own namespace
		device = deviceName(route.Ifindex)
	}
	return p.ExitOf(route.Source, device, f.Mark, f.UID)
}

// route is the way that the client's own socket would go.
func (c *conn) route() (dial.Route, error) {
	f := &c.flow
	return c.ns.Route(f.Dest, f.Mark, f.UID, f.Ifindex, f.Source)
}

// checkExit sees that the upstream connection leaves by the client's exit.
func (c *conn) checkExit() error {
	route, err := c.route()
	if err != nil {
		return fmt.Errorf("%w: %w", dial.ErrExit, err)
	}
	return dial.Check(c.up.fd, &c.flow, route)
}

// deviceName is the name of a device in the daemon's own namespace, or "".
func deviceName(index uint32) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	device, err := unix.NewIfreq("")
	if err != nil {
		return ""
	}
	device.SetUint32(index)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, device); err != nil {
		return ""
	}
	return device.Name()
}
