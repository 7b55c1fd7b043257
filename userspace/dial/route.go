// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Route is what the kernel gives a socket that is bound to nothing.
type Route struct {
	Source  netip.Addr
	Ifindex uint32 // of the device by which it leaves
}

const (
	routeLife = time.Second // for which an answer is believed
	maxRoutes = 1024        // answers kept per namespace
)

// routeKey is everything that the answer depends on.
type routeKey struct {
	dest netip.AddrPort
	src  netip.Addr
	mark uint32
	uid  uint32
	oif  uint32
}

type keptRoute struct {
	Route
	until time.Time
}

// router asks one network namespace for routes. The zero router is ready.
type router struct {
	mu   sync.Mutex
	open bool // fd is the rtnetlink socket of the namespace
	fd   int
	seq  uint32
	kept map[routeKey]keptRoute
}

// home is the router of the daemon's own namespace.
var home router

func (ns *Netns) router() *router {
	if ns == nil {
		return &home
	}
	return &ns.routes
}

// Route is the route that a TCP socket of the namespace to dest has now, or
// had at most a second ago, if it has this mark, owner, device (0: not bound)
// and source (the zero Addr: not bound). The error wraps the errno that
// connect() would give, ENETUNREACH for instance; errors are not kept. What
// depends on the type of service or the source port, as multipath routes by
// layer 4 do, is beyond it. Safe for concurrent use.
func (ns *Netns) Route(dest netip.AddrPort, mark, uid, oif uint32, src netip.Addr) (Route, error) {
	if dest.Addr() == netip.IPv6Unspecified() {
		dest = netip.AddrPortFrom(netip.IPv6Loopback(), dest.Port()) // as connect() takes it
	}
	key := routeKey{dest: dest, src: src, mark: mark, uid: uid, oif: oif}
	r := ns.router()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if k, ok := r.kept[key]; ok && now.Before(k.until) {
		return k.Route, nil
	}
	route, err := r.ask(ns, &key)
	if err != nil {
		return Route{}, fmt.Errorf("ask for the route to %v: %w", dest, err)
	}
	r.keep(key, keptRoute{route, now.Add(routeLife)}, now)
	return route, nil
}

// keep remembers an answer. Where there is no room even after what is too old
// has gone, all of it goes: a second later it would have anyway.
func (r *router) keep(key routeKey, route keptRoute, now time.Time) {
	if len(r.kept) >= maxRoutes {
		for k, kept := range r.kept {
			if !now.Before(kept.until) {
				delete(r.kept, k)
			}
		}
		if len(r.kept) >= maxRoutes {
			clear(r.kept)
		}
	}
	if r.kept == nil {
		r.kept = make(map[routeKey]keptRoute)
	}
	r.kept[key] = route
}

// ask puts the question to the kernel.
func (r *router) ask(ns *Netns, key *routeKey) (_ Route, err error) {
	if !r.open {
		if r.fd, err = ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE); err != nil {
			return Route{}, fmt.Errorf("make a route socket: %w", err)
		}
		r.open = true
	}
	r.seq++
	if err := unix.Sendto(r.fd, routeRequest(r.seq, key), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return Route{}, fmt.Errorf("send: %w", err)
	}
	var answer [4096]byte // the kernel has answered before send returned
	for {
		n, _, err := unix.Recvfrom(r.fd, answer[:], 0)
		if err != nil {
			return Route{}, fmt.Errorf("receive: %w", err)
		}
		route, err := routeAnswer(answer[:n], r.seq)
		if errors.Is(err, errStale) {
			continue
		}
		if err == nil && key.src.IsValid() {
			route.Source = key.src // the kernel keeps silent about it
		}
		return route, err
	}
}

// close gives the socket back. The router may be used again afterwards.
func (r *router) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open {
		unix.Close(r.fd)
		r.open = false
	}
	r.kept = nil
}

// routeRequest is an RTM_GETROUTE, see rtnetlink(7).
func routeRequest(seq uint32, key *routeKey) []byte {
	addr := key.dest.Addr()
	family, bits := byte(unix.AF_INET6), byte(128)
	if addr.Is4() {
		family, bits = unix.AF_INET, 32
	}
	b := make([]byte, 0, 160)
	b = append(b, 0, 0, 0, 0) // length, at the end
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0) // port id
	srcBits := byte(0)
	if key.src.IsValid() {
		srcBits = bits
	}
	b = append(b, family, bits, srcBits, 0, 0, 0, 0, 0, 0, 0, 0, 0) // struct rtmsg
	b = appendAttr(b, unix.RTA_DST, addr.AsSlice())
	if key.src.IsValid() {
		b = appendAttr(b, unix.RTA_SRC, key.src.AsSlice())
	}
	if key.oif != 0 {
		b = appendAttr(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, key.oif))
	}
	if key.mark != 0 {
		b = appendAttr(b, unix.RTA_MARK, binary.NativeEndian.AppendUint32(nil, key.mark))
	}
	b = appendAttr(b, unix.RTA_UID, binary.NativeEndian.AppendUint32(nil, key.uid))
	b = appendAttr(b, unix.RTA_IP_PROTO, []byte{unix.IPPROTO_TCP})
	if port := key.dest.Port(); port != 0 {
		b = appendAttr(b, unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, port))
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

// appendAttr appends a struct rtattr with its padding.
func appendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

var (
	errStale     = errors.New("answer to another question")
	errMalformed = errors.New("malformed answer")
)

// routeAnswer reads an RTM_NEWROUTE, or the errno that the kernel answered
// instead. errStale: it belongs to an earlier request.
func routeAnswer(b []byte, seq uint32) (Route, error) {
	if len(b) < unix.SizeofNlMsghdr {
		return Route{}, errMalformed
	}
	length, kind := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint16(b[4:])
	if binary.NativeEndian.Uint32(b[8:]) != seq {
		return Route{}, errStale
	}
	if length < unix.SizeofNlMsghdr || uint64(length) > uint64(len(b)) {
		return Route{}, errMalformed
	}
	body := b[unix.SizeofNlMsghdr:length]
	switch kind {
	case unix.NLMSG_ERROR:
		if len(body) < 4 {
			return Route{}, errMalformed
		}
		errno := -int32(binary.NativeEndian.Uint32(body))
		if errno <= 0 {
			return Route{}, errMalformed // 0 would acknowledge what asked for no acknowledgement
		}
		return Route{}, unix.Errno(errno)
	case unix.RTM_NEWROUTE:
		return routeMessage(body)
	}
	return Route{}, errMalformed
}

// routeMessage reads a struct rtmsg and its attributes.
func routeMessage(b []byte) (Route, error) {
	if len(b) < unix.SizeofRtMsg {
		return Route{}, errMalformed
	}
	size := 16
	if b[0] == unix.AF_INET {
		size = 4
	}
	var route Route
	for b = b[unix.SizeofRtMsg:]; len(b) >= unix.SizeofRtAttr; {
		length, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < unix.SizeofRtAttr || length > len(b) {
			return Route{}, errMalformed
		}
		value := b[unix.SizeofRtAttr:length]
		switch kind {
		case unix.RTA_PREFSRC:
			if len(value) != size {
				return Route{}, errMalformed
			}
			route.Source, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			if len(value) != 4 {
				return Route{}, errMalformed
			}
			route.Ifindex = binary.NativeEndian.Uint32(value)
		}
		b = b[min(len(b), (length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return route, nil
}
