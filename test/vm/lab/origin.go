// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
)

// Accepted is a connection that came to an Origin.
type Accepted struct {
	At   Mono
	Peer netip.AddrPort
}

// Origin is a TCP server that writes down who comes when, and hangs up on those
// that have sent all. It is safe for concurrent use.
type Origin struct {
	listener net.Listener
	loop     sync.WaitGroup

	mu       sync.Mutex
	accepted []Accepted
	conns    map[net.Conn]bool
}

// Listen starts an origin at an address and port in the namespace; port 0
// takes a free one.
func (n *Netns) Listen(addr netip.AddrPort) (*Origin, error) {
	o := &Origin{conns: map[net.Conn]bool{}}
	err := n.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		o.listener, err = lc.Listen(context.Background(), "tcp", addr.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	o.loop.Go(o.accept)
	return o, nil
}

// Addr is where the origin listens.
func (o *Origin) Addr() netip.AddrPort { return o.listener.Addr().(*net.TCPAddr).AddrPort() }

// Accepted lists the connections that came, in their order.
func (o *Origin) Accepted() []Accepted {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Accepted(nil), o.accepted...)
}

// Close hangs up on everyone.
func (o *Origin) Close() error {
	err := o.listener.Close()
	o.mu.Lock()
	for conn := range o.conns {
		conn.Close()
	}
	o.mu.Unlock()
	o.loop.Wait()
	return err
}

func (o *Origin) accept() {
	for {
		conn, err := o.listener.Accept()
		if err != nil {
			return
		}
		at := Now()
		o.mu.Lock()
		o.accepted = append(o.accepted, Accepted{at, conn.RemoteAddr().(*net.TCPAddr).AddrPort()})
		o.conns[conn] = true
		o.mu.Unlock()
		o.loop.Go(func() {
			io.Copy(io.Discard, conn)
			conn.Close()
			o.mu.Lock()
			delete(o.conns, conn)
			o.mu.Unlock()
		})
	}
}

// Dial makes a TCP connection in the namespace, with the deadline of ctx. from
// is its source; the zero AddrPort leaves it to the kernel.
func (n *Netns) Dial(ctx context.Context, from, to netip.AddrPort) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		if from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		conn, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return conn, err
}
