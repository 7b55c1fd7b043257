// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

const (
	// leafLife is how long a leaf is valid, of which backdate is past.
	leafLife = 7 * 24 * time.Hour
	// leafRest is what a leaf that is handed out is at least valid for.
	leafRest = 24 * time.Hour
	// maxLeaves is how many leaves are kept; each takes some kilobytes.
	maxLeaves = 4096
)

// leafCache keeps leaves, the most recently used ones. Its zero value is
// ready; it is safe for concurrent use.
type leafCache struct {
	mu    sync.Mutex
	order list.List // of *leafEntry, the most recently used first
	names map[string]*list.Element
}

// leafEntry is a leaf that is there or being made.
type leafEntry struct {
	name  string
	ready chan struct{} // closed once cert and err are set
	cert  *tls.Certificate
	err   error
}

// Leaf returns a certificate for name, a host name or an address, with its
// key, valid for a day at least. It makes one at a time for each name. For a
// name that the authority may not sign for the error is ErrOutside.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) {
	if !a.Permits(name) {
		return nil, fmt.Errorf("%w: %s", ErrOutside, name)
	}
	for {
		e, mine := a.leaf.entry(name)
		if mine {
			e.cert, e.err = a.sign(name)
			close(e.ready)
			if e.err != nil {
				a.leaf.drop(e)
			}
			return e.cert, e.err
		}
		<-e.ready
		if e.err != nil {
			return nil, e.err
		}
		if a.now().Add(leafRest).Before(e.cert.Leaf.NotAfter) || e.cert.Leaf.NotAfter.Equal(a.cert.NotAfter) {
			return e.cert, nil
		}
		a.leaf.drop(e)
	}
}

// entry returns the entry of name; mine says that it is new and the caller is
// to complete it.
func (c *leafCache) entry(name string) (e *leafEntry, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.names[name]; ok {
		c.order.MoveToFront(at)
		return at.Value.(*leafEntry), false
	}
	if c.names == nil {
		c.names = make(map[string]*list.Element)
	}
	if c.order.Len() >= maxLeaves {
		oldest := c.order.Back()
		delete(c.names, c.order.Remove(oldest).(*leafEntry).name)
	}
	e = &leafEntry{name: name, ready: make(chan struct{})}
	c.names[name] = c.order.PushFront(e)
	return e, true
}

// drop forgets e, unless another has taken its place.
func (c *leafCache) drop(e *leafEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.names[e.name]; ok && at.Value == e {
		c.order.Remove(at)
		delete(c.names, e.name)
	}
}

// sign makes a leaf for name.
func (a *Authority) sign(name string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for %s: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	from := a.now().Add(-backdate)
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"egressd"}},
		NotBefore:             later(from, a.cert.NotBefore),
		NotAfter:              earlier(from.Add(leafLife), a.cert.NotAfter),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		// OpenSSL takes an address in a common name for a host name, which the
		// authority's constraints would forbid.
		t.IPAddresses = append(t.IPAddresses, addr.Unmap().AsSlice())
	} else {
		t.DNSNames = []string{name}
		if len(name) <= 64 { // the upper bound of a common name (RFC 5280, appendix A)
			t.Subject.CommonName = name
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
