// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/egressd/egressd/policy/ledger"
)

// Pool is a set of exits of which egressd chooses one. Clients use its address
// as that of an HTTP proxy; nothing listens there.
type Pool struct {
	Name    string         // no exit has it
	Listen  netip.AddrPort // a loopback address where no proxy of an exit listens
	Members []Member       // at least one, no two the same
	Sticky  Sticky
}

// MaxMembers bounds the members of a pool: each choice looks at all of them.
const MaxMembers = 1000

// Member is one exit of a pool: a proxy, or one port of a proxy whose ports
// are exits of their own. Made by NewMember.
type Member struct {
	Exit   *Exit
	Port   uint16 // of its proxy
	Weight int    // its share of the pool, in relation to the others'; 1 to 1000

	through Through
	host    netip.Addr // of the proxy, if the file writes it as an address
	hash    uint64
}

// NewMember makes a member of a port of the proxy of an exit.
func NewMember(exit *Exit, port uint16, weight int) Member {
	m := Member{Exit: exit, Port: port, Weight: weight, through: exit.Through(port, exit.Proxy.User)}
	m.host, _ = hostAddr(exit.Proxy.Host)
	m.hash = hashText(m.String())
	return m
}

// String is the member's name: that of its exit, with the port where each is
// an exit of its own.
func (m *Member) String() string {
	if m.Exit.Proxy.PerPort {
		return m.Exit.Name + "/" + strconv.Itoa(int(m.Port))
	}
	return m.Exit.Name
}

// Through is what origins see of a request that the member sends with the
// exit's own user name.
func (m *Member) Through() Through { return m.through }

// asFacts completes the facts of a request that goes through the member.
func (m *Member) asFacts(f *Facts) {
	f.Exit, f.Session, f.Lifetime, f.Proxied = m.through.Exit, m.through.Session, m.through.Lifetime, true
}

// Sticky is what keeps its exit in a pool.
type Sticky uint8

// What keeps its exit.
const (
	StickyNone        Sticky = iota // nothing: each request goes to the next exit
	StickyClient                    // each process
	StickySession                   // each user name at the pool; a request without one goes to the next exit
	StickyDestination               // each host
)

// PickKey is of whom and where a request is. Its strings may be views of a
// buffer.
type PickKey struct {
	Client  Client
	Session string // user name that the client gave at the pool, "" for none
	Host    string // as in Facts
}

// Health is whether a member can take a request at once. The zero Health says
// that it can.
type Health struct {
	// Closed says that a request would have to wait for more than its pace,
	// and Until for which instant at least: the present one where it waits for
	// an answer.
	Closed bool
	Until  ledger.Time
	// Trouble says that the exit is closed to all destinations.
	Trouble bool
}

// Choice is the member that a Picker chose.
type Choice struct {
	Member *Member
	// From, if not nil, is the member whose turn it was: it is closed, so the
	// request switched exits instead of waiting. Nil where nothing was gained,
	// as all are closed.
	From *Member
	// Why is the health of From, and First says that it is the first switch
	// since From was closed: the one to report as an event.
	Why   Health
	First bool
}

// Picker chooses members of one pool. Safe for concurrent use.
//
// What sticks to an exit is never moved, in whatever state the exit is: the
// key and the members' names decide alone, so that the choice outlives the
// daemon, and an exit that joins or leaves moves only its own share. All else
// takes turns at the exits that are open, for each destination by itself.
type Picker struct {
	Pool *Pool

	strides []uint64 // virtual time between two turns of each member
	start   rota     // where a destination's turns begin
	hosts   [maxRotas]atomic.Pointer[rota]
}

// NewPicker makes a picker for a pool, which must have a member.
func NewPicker(p *Pool) *Picker {
	k := &Picker{Pool: p, strides: make([]uint64, len(p.Members))}
	k.start.next = make([]uint64, len(p.Members))
	for i := range p.Members {
		k.strides[i] = lap / uint64(p.Members[i].Weight)
		k.start.next[i] = k.strides[i] / 2
	}
	return k
}

// Pick chooses the member for a request at now. healthy tells of a member's
// health; it must not call the picker, and is not asked of what is sticky. Does
// not allocate, but for a destination's first request.
func (k *Picker) Pick(key PickKey, now ledger.Time, healthy func(*Member) Health) Choice {
	switch k.Pool.Sticky {
	case StickyClient:
		return Choice{Member: k.sticky(mix(uint64(key.Client.Process)))}
	case StickySession:
		if key.Session != "" {
			return Choice{Member: k.sticky(hashText(key.Session))}
		}
	case StickyDestination:
		return Choice{Member: k.sticky(hashText(key.Host))}
	}
	return k.next(k.rotaOf(key.Host), now, healthy)
}

// sticky is the member of a key by weighted rendezvous hashing: of numbers that
// are exponentially distributed, each at the rate of its member's weight, the
// least is a member's with the probability of its share. A member's number
// depends on no other member.
func (k *Picker) sticky(key uint64) *Member {
	best, least := 0, math.Inf(1)
	for i := range k.Pool.Members {
		m := &k.Pool.Members[i]
		// 53 bits, and a half so that it is never 0.
		uniform, weight := (float64(mix(key^m.hash)>>11)+0.5)/(1<<53), float64(m.Weight)
		if (1-uniform)/weight >= least { // -ln x is above 1-x, so most need no logarithm
			continue
		}
		if x := -math.Log(uniform) / weight; x < least {
			best, least = i, x
		}
	}
	return &k.Pool.Members[best]
}

// hashText is FNV-1a, stirred. It is the same in each process, which the
// choices of clients are to outlive.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: each bit of x changes half of the others.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
