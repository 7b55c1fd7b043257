// SPDX-License-Identifier: Apache-2.0

// Package dnsmsg reads DNS responses: which addresses a client that asked for a
// name was told. It does no I/O, keeps nothing, and takes all or nothing of a
// message.
//
// The names of an Answer are of two kinds. That of the question is the one that
// the client goes on to use, in its Host field and in its ClientHello; those of
// the CNAME chain behind it only tell where the zone's owner has it served.
package dnsmsg

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/egressd/egressd/policy"
)

// Bounds of what is believed of one message.
const (
	MaxAddresses = 256
	MaxAliases   = 16
)

// Reasons why a message tells nothing. Any other error of Parse means that it is
// malformed.
var (
	// ErrNoAnswer means that it is no response to one question, or one that
	// says of an error.
	ErrNoAnswer = errors.New("no answer to one question")
	// ErrNotAddresses means that something else was asked for, or that there
	// is no address of the name among the records.
	ErrNotAddresses = errors.New("no addresses")
	// ErrName means that what was asked for is no name of a host.
	ErrName = errors.New("no host name")
)

var (
	errAddresses = fmt.Errorf("more than %d addresses", MaxAddresses)
	errAliases   = fmt.Errorf("more than %d aliases", MaxAliases)
	errLength    = errors.New("record of another length than its type has")
	errHints     = errors.New("address hints of an odd length")
)

// Answer is what a client that asked for Name was told.
type Answer struct {
	Name    string   // asked for; lower case, without the final dot
	Aliases []string // the names of hosts behind it, by CNAME, in order, as Name is written
	Addrs   []Address
}

// Address is an address of a name.
type Address struct {
	Addr netip.Addr
	// Chain is how many of the aliases lead to it.
	Chain int
	// TTL is how long the answer may be kept: the least of the record's own
	// and those of the aliases that lead to it.
	TTL time.Duration
}

// record is one of the answer section that may matter.
type record struct {
	owner  string
	ttl    uint32
	target string       // of a CNAME
	addrs  []netip.Addr // of the others
}

// Parse reads a response. Addresses of the types A and AAAA count where they
// were asked for; those that an HTTPS record hints at (RFC 9460 section 7.3),
// likewise. The order of the records is of no importance (RFC 1034 section
// 3.7.1 promises none), and records of other names are passed over. Of a
// truncated response what there is counts: some clients make do with it.
func Parse(msg []byte) (*Answer, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil, fmt.Errorf("parse DNS message: %w", err)
	}
	if !h.Response || h.OpCode != 0 || h.RCode != dnsmessage.RCodeSuccess {
		return nil, ErrNoAnswer
	}
	q, err := p.Question()
	if errors.Is(err, dnsmessage.ErrSectionDone) {
		return nil, ErrNoAnswer
	}
	if err != nil {
		return nil, fmt.Errorf("parse DNS message: %w", err)
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		if err != nil {
			return nil, fmt.Errorf("parse DNS message: %w", err)
		}
		return nil, ErrNoAnswer
	}
	if q.Class != dnsmessage.ClassINET {
		return nil, ErrNotAddresses
	}
	switch q.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeALL:
	default:
		return nil, ErrNotAddresses
	}
	records, err := answers(&p, q.Type)
	if err != nil {
		return nil, fmt.Errorf("parse DNS message: %w", err)
	}
	owner := text(q.Name)
	name := owner
	if q.Type == dnsmessage.TypeHTTPS {
		name = withoutPort(name)
	}
	if !policy.IsHostName(name) {
		return nil, ErrName
	}
	a := &Answer{Name: name}
	if err := a.follow(owner, records); err != nil {
		return nil, fmt.Errorf("parse DNS message: %w", err)
	}
	if len(a.Addrs) == 0 {
		return nil, ErrNotAddresses
	}
	return a, nil
}

// answers reads the answer section: the aliases, and what has addresses of the
// type that was asked for.
func answers(p *dnsmessage.Parser, asked dnsmessage.Type) ([]record, error) {
	var records []record
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return records, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Class != dnsmessage.ClassINET || h.Type != dnsmessage.TypeCNAME && h.Type != asked && asked != dnsmessage.TypeALL {
			if err := p.SkipAnswer(); err != nil {
				return nil, err
			}
			continue
		}
		r := record{owner: text(h.Name), ttl: h.TTL}
		switch h.Type {
		case dnsmessage.TypeCNAME:
			var body dnsmessage.CNAMEResource
			if body, err = p.CNAMEResource(); err == nil {
				r.target = text(body.CNAME)
			}
		case dnsmessage.TypeA:
			var body dnsmessage.AResource
			if body, err = p.AResource(); err == nil {
				r.addrs, err = []netip.Addr{netip.AddrFrom4(body.A)}, length(h, 4)
			}
		case dnsmessage.TypeAAAA:
			var body dnsmessage.AAAAResource
			if body, err = p.AAAAResource(); err == nil {
				r.addrs, err = []netip.Addr{netip.AddrFrom16(body.AAAA).Unmap()}, length(h, 16)
			}
		case dnsmessage.TypeHTTPS:
			var body dnsmessage.HTTPSResource
			if body, err = p.HTTPSResource(); err == nil {
				r.addrs, err = hints(&body)
			}
		default:
			if err := p.SkipAnswer(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
}

// length checks what the library does not look at.
func length(h dnsmessage.ResourceHeader, want uint16) error {
	if h.Length != want {
		return errLength
	}
	return nil
}

// hints are the addresses that an HTTPS record has. One in AliasMode (priority
// 0) has none that count (RFC 9460 section 2.4.2).
func hints(r *dnsmessage.HTTPSResource) (addrs []netip.Addr, err error) {
	if r.Priority == 0 {
		return nil, nil
	}
	for _, hint := range []struct {
		key  dnsmessage.SVCParamKey
		size int
	}{{dnsmessage.SVCParamIPv4Hint, 4}, {dnsmessage.SVCParamIPv6Hint, 16}} {
		value, ok := r.GetParam(hint.key)
		if !ok {
			continue
		}
		if len(value) == 0 || len(value)%hint.size != 0 {
			return nil, errHints
		}
		for one := range slices.Chunk(value, hint.size) {
			addr, _ := netip.AddrFromSlice(one)
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs, nil
}

// follow walks the chain of aliases from owner on and takes the addresses at
// each of its names: at the last one, where the zones keep to the rules.
func (a *Answer) follow(owner string, records []record) error {
	least := uint32(1<<31 - 1) // RFC 2181 section 8
	for passed := []string{owner}; len(passed) <= MaxAliases+1; passed = append(passed, owner) {
		next := -1
		for i := range records {
			r := &records[i]
			if r.owner != owner {
				continue
			}
			if r.target != "" && next < 0 {
				next = i
			}
			for _, addr := range r.addrs {
				if err := a.add(addr, min(least, lifetime(r.ttl))); err != nil {
					return err
				}
			}
		}
		if next < 0 || slices.Contains(passed, records[next].target) {
			return nil
		}
		owner, least = records[next].target, min(least, lifetime(records[next].ttl))
		if policy.IsHostName(owner) {
			a.Aliases = append(a.Aliases, owner)
		}
	}
	return errAliases
}

// lifetime is a TTL as RFC 2181 section 8 has it: one with the highest bit set is
// zero.
func lifetime(ttl uint32) uint32 {
	if ttl > 1<<31-1 {
		return 0
	}
	return ttl
}

// add takes an address, once. What no connection can go to is left out.
func (a *Answer) add(addr netip.Addr, ttl uint32) error {
	if addr.IsUnspecified() || addr.IsMulticast() {
		return nil
	}
	if slices.ContainsFunc(a.Addrs, func(had Address) bool { return had.Addr == addr }) {
		return nil
	}
	if len(a.Addrs) == MaxAddresses {
		return errAddresses
	}
	a.Addrs = append(a.Addrs, Address{Addr: addr, Chain: len(a.Aliases), TTL: time.Duration(ttl) * time.Second})
	return nil
}

// text is a name in lower case, without the final dot: servers, and clients that
// vary the case against forgery, spell it as they like.
func text(n dnsmessage.Name) string {
	b := n.Data[:n.Length]
	if len(b) > 0 && b[len(b)-1] == '.' {
		b = b[:len(b)-1]
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// withoutPort is the host of an origin at another port than 443, whose HTTPS
// record has the name _8443._https.host (RFC 9460 section 9.1).
func withoutPort(name string) string {
	port, rest, ok := strings.Cut(name, "._https.")
	if !ok || len(port) < 2 || port[0] != '_' || !digits(port[1:]) {
		return name
	}
	return rest
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
