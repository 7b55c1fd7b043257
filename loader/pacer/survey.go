// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// survey is what the kernel says of a namespace, as far as it matters here.
type survey struct {
	links  map[int]*device
	routes []route
}

// device is a network device and its qdiscs.
type device struct {
	name         string
	index        int
	kind         string // "device", "vlan", "bond", …
	up, loopback bool
	parent       int // device below a VLAN; 0: none, or in another namespace
	master       int // bond, team or bridge that it is a port of; 0: none
	queueLength  int
	root         qdisc // kind "" where there is none yet
	leaves       []qdisc
	clsact       bool
	ingress      bool // an ingress qdisc is where clsact would be
}

// qdisc is a queueing discipline. The kernel gives handle 0 to those that it
// chose by itself.
type qdisc struct {
	kind    string
	handle  uint32
	parent  uint32
	horizon time.Duration // of fq
}

// route is what matters of a route: where to, and by which devices.
type route struct {
	dest  netip.Prefix
	local bool  // to the namespace itself
	via   []int // of each next hop; 0 is unknown
}

// surveyor asks one namespace, by sockets that were opened in it. Not safe for
// concurrent use.
type surveyor struct {
	h      *netlink.Handle
	routes []route // of the last answer
}

// patience is how long the kernel may take for an answer.
const patience = 5 * time.Second

func newSurveyor() (*surveyor, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	if err := h.SetSocketTimeout(patience); err != nil {
		h.Close()
		return nil, fmt.Errorf("set timeout of rtnetlink: %w", err)
	}
	return &surveyor{h: h}, nil
}

func (s *surveyor) close() { s.h.Close() }

// look asks for devices and qdiscs, and for routes if they may have changed.
// torn says that something changed meanwhile: the caller should soon ask again.
func (s *surveyor) look(routes bool) (_ *survey, torn bool, err error) {
	found := &survey{links: make(map[int]*device)}
	links, err := s.h.LinkList()
	if torn, err = interrupted(torn, err); err != nil {
		return nil, false, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		found.links[l.Attrs().Index] = newDevice(l)
	}
	qdiscs, err := s.h.QdiscList(nil)
	if torn, err = interrupted(torn, err); err != nil {
		return nil, false, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if d := found.links[q.Attrs().LinkIndex]; d != nil {
			d.addQdisc(q)
		}
	}
	for _, d := range found.links {
		d.keepLeaves()
	}
	if routes || s.routes == nil {
		var tornRoutes bool
		if s.routes, tornRoutes, err = s.readRoutes(); err != nil {
			return nil, false, err
		}
		torn = torn || tornRoutes
	}
	found.routes = s.routes
	return found, torn, nil
}

// interrupted takes the one error out that does not make a list worthless.
func interrupted(before bool, err error) (bool, error) {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return true, nil
	}
	return before, err
}

func newDevice(l netlink.Link) *device {
	a := l.Attrs()
	d := &device{
		name: a.Name, index: a.Index, kind: l.Type(), queueLength: a.TxQLen, master: a.MasterIndex,
		up: a.Flags&net.FlagUp != 0, loopback: a.Flags&net.FlagLoopback != 0,
	}
	if a.NetNsID < 0 { // else the number is one of another namespace
		d.parent = a.ParentIndex
	}
	return d
}

// addQdisc takes note of one qdisc of the device. The leaves are sorted out by
// keepLeaves, as the root may come after them.
func (d *device) addQdisc(q netlink.Qdisc) {
	a := q.Attrs()
	found := qdisc{kind: q.Type(), handle: a.Handle, parent: a.Parent}
	if fq, is := q.(*netlink.Fq); is {
		found.horizon = time.Duration(fq.Horizon) * time.Microsecond
	}
	switch {
	case a.Parent == netlink.HANDLE_ROOT:
		d.root = found
	case a.Parent == netlink.HANDLE_CLSACT:
		d.clsact = d.clsact || found.kind == "clsact"
		d.ingress = d.ingress || found.kind == "ingress"
	default:
		d.leaves = append(d.leaves, found)
	}
}

// keepLeaves keeps the qdiscs right below the root.
func (d *device) keepLeaves() {
	kept := d.leaves[:0]
	for _, q := range d.leaves {
		if q.parent&majorMask == d.root.handle&majorMask {
			kept = append(kept, q)
		}
	}
	d.leaves = kept
}

// majorMask is the part of a handle that tells the qdisc; the rest is the class.
const majorMask = 0xffff0000

// readRoutes asks for the routes of all tables.
func (s *surveyor) readRoutes() (found []route, torn bool, err error) {
	found = []route{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all := everything(family == netlink.FAMILY_V4)
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		err := s.h.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if converted, ok := newRoute(&r, all); ok {
				found = append(found, converted)
			}
			return true
		})
		if torn, err = interrupted(torn, err); err != nil {
			return nil, false, fmt.Errorf("list routes: %w", err)
		}
	}
	return found, torn, nil
}

// newRoute converts a route. ok is false for one by which no connection goes.
func newRoute(r *netlink.Route, all netip.Prefix) (_ route, ok bool) {
	converted := route{dest: all}
	switch r.Type {
	case unix.RTN_UNICAST:
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		converted.local = true
	default:
		return route{}, false
	}
	if r.Dst != nil {
		addr, valid := netip.AddrFromSlice(r.Dst.IP)
		if all.Addr().Is4() {
			addr = addr.Unmap() // the library's 0.0.0.0 has 16 bytes
		}
		bits, _ := r.Dst.Mask.Size()
		if !valid {
			return route{}, false
		}
		converted.dest = netip.PrefixFrom(addr, bits).Masked()
	}
	// A next hop that is an object of its own (RTA_NH_ID) may come without a
	// device: then it is unknown.
	if len(r.MultiPath) == 0 {
		converted.via = []int{r.LinkIndex}
	}
	for _, hop := range r.MultiPath {
		converted.via = append(converted.via, hop.LinkIndex)
	}
	return converted, true
}
