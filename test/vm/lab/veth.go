// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a pair of devices.
type End struct {
	Netns *Netns
	Name  string         // of the device
	Addrs []netip.Prefix // usable at once: IPv6 looks for no duplicates
}

// Join makes a pair of devices with an end in each namespace, both up. Without
// a qdisc of its own a device sends at once.
func Join(a, b End) error {
	err := a.Netns.Do(func() error {
		attrs := netlink.NewLinkAttrs() // with the usual length of a queue
		attrs.Name = a.Name
		link := &netlink.Veth{
			LinkAttrs:     attrs,
			PeerName:      b.Name,
			PeerNamespace: netlink.NsFd(b.Netns.file.Fd()),
		}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("make %s and %s: %w", a.Name, b.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, end := range []End{a, b} {
		if err := end.Netns.Do(end.setUp); err != nil {
			return err
		}
	}
	return nil
}

func (e End) setUp() error {
	link, err := netlink.LinkByName(e.Name)
	if err != nil {
		return fmt.Errorf("find %s: %w", e.Name, err)
	}
	for _, prefix := range e.Addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{
			IP:   prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		}}
		if prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("give %s to %s: %w", prefix, e.Name, err)
		}
	}
	return up(e.Name)
}

// FQ makes fq the root qdisc of a device of the namespace: packets leave at the
// time that is written in them. A time further off than the horizon is cut down
// to it: such packets leave then, early, where fq would otherwise drop them. The module
// sch_fq must be loaded or built in; else the error wraps unix.ENOENT.
func (n *Netns) FQ(device string, horizon time.Duration) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find %s: %w", device, err)
		}
		fq := netlink.NewFq(netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Parent:    netlink.HANDLE_ROOT,
			Handle:    netlink.MakeHandle(1, 0),
		})
		fq.Horizon = uint32(horizon.Microseconds())
		fq.HorizonDropPolicy = netlink.HORIZON_DROP_POLICY_CAP
		if err := netlink.QdiscReplace(fq); err != nil {
			return fmt.Errorf("put fq at %s: %w", device, err)
		}
		return nil
	})
}

// Blackhole gives addr, of the subnet of the device, the neighbour's own link
// address: packets to it arrive at the other end, where nobody has it, and
// nothing answers.
func (n *Netns) Blackhole(device string, addr netip.Addr, peer net.HardwareAddr) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find %s: %w", device, err)
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex:    link.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           addr.AsSlice(),
			HardwareAddr: peer,
		})
	})
}

// HardwareAddr is the link address of a device of the namespace.
func (n *Netns) HardwareAddr(device string) (addr net.HardwareAddr, err error) {
	err = n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find %s: %w", device, err)
		}
		addr = link.Attrs().HardwareAddr
		return nil
	})
	return addr, err
}
