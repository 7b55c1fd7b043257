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
	if c.wayErr != nil {
		return f.Exit // the upstream connection will show why
	}
	device := ""
	if c.ns == nil { // the names of the policy file are those of the daemon's own namespace
		device = deviceName(c.way.Ifindex)
	}
	return p.ExitOf(c.way.Source, device, f.Mark, f.UID)
}

// route is the way that the client's own socket would go.
func (c *conn) route() (dial.Route, error) {
	f := &c.flow
	return c.ns.Route(c.goal(), f.Mark, f.UID, f.Ifindex, f.Source)
}

// checkExit sees that the upstream connection leaves by the client's exit: the
// one that its own socket would have had when it called connect(), however long
// the request was held since.
func (c *conn) checkExit() error {
	if c.wayErr != nil {
		return fmt.Errorf("%w: %w", dial.ErrExit, c.wayErr)
	}
	if err := dial.Check(c.up.fd, &c.flow, c.way); err != nil {
		return err
	}
	// The address may be the same and the device another.
	now, err := c.route()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", dial.ErrExit, err)
	case now.Ifindex != c.way.Ifindex:
		return fmt.Errorf("%w: the route leads to device %d, and led to %d", dial.ErrExit, now.Ifindex, c.way.Ifindex)
	}
	return nil
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
