// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy/exitid"
	"github.com/egressd/egressd/policy/ledger"
)

// Proxy is a forward proxy as an exit. What an origin sees is told by the port
// and by the user name, as far as the provider tells exits apart by them.
type Proxy struct {
	Host        string // name, or address in canonical text
	First, Last uint16 // its ports
	PerPort     bool   // each port is an exit of its own
	// Session tells exits apart by the user name; nil: all users share one.
	Session *exitid.Pattern
	// Lifetime is how long a session keeps its address: after it the lane
	// forgets a cooldown, since another address takes over. 0: for good, but
	// a user name may tell its own.
	Lifetime time.Duration
	// User and Password are what egressd itself logs in with, for the requests
	// of pools; User is "" where it does not. Never shown, neither of them.
	User     string
	Password Secret
	// Rotating says that each connection without a session has an address of
	// its own: a limit touches no lane of the exit, but ends the connection.
	Rotating bool
}

// Through is the exit of one request through a proxy.
type Through struct {
	Exit     string // the exit's full identity: "E-017", "E-017/10001", "E-017/abc"
	Session  string // "" if none was told
	Lifetime time.Duration
	Rotating bool // another connection has another address
}

// Through tells the exit of what is sent to a port of e's proxy by a user, ""
// where none is named.
func (e *Exit) Through(port uint16, user string) Through {
	p := e.Proxy
	t := Through{Exit: e.Identity(), Lifetime: p.Lifetime}
	if p.PerPort {
		t.Exit += "/" + strconv.Itoa(int(port))
	}
	if p.Session != nil && user != "" {
		if id, ok := p.Session.Find(user); ok {
			t.Session = id.Session
			t.Exit += "/" + id.Session
			if id.Lifetime > 0 {
				t.Lifetime = id.Lifetime
			}
		}
	}
	t.Rotating = p.Rotating && t.Session == ""
	return t
}

// ExitBudget is the name of the lanes that hold the trouble of exits where no
// budget of the file does: one for each exit that is a proxy, without a rate.
const ExitBudget = "exits"

// exitTrouble is that budget. It admits only what goes through a proxy.
var exitTrouble = &Budget{
	Name:     ExitBudget,
	Per:      PerExit,
	Burst:    1,
	Queue:    Queue{Max: 1000, MaxWait: 30 * time.Second},
	Cooldown: Cooldown{Default: time.Second, Max: maxCooldown, Spread: 0.1, Statuses: []int{429}},
	Recovery: Recovery{Factor: 0.5, Step: 1.1},
}

// SetEndpoints says at which addresses the proxies of the policy's exits
// listen now. The map must not be changed afterwards.
func (e *Engine) SetEndpoints(m map[netip.AddrPort]*Exit) { e.endpoints.Store(&m) }

// Endpoint is the exit whose proxy listens at an address, or nil.
func (e *Engine) Endpoint(addr netip.AddrPort) *Exit { return (*e.endpoints.Load())[addr] }

// renewed reports whether the lifetime of the exit's address that the lane
// knows is over. 0 is no lifetime.
func (l *Lane) renewed(lifetime time.Duration, now ledger.Time) bool {
	born := l.born.Load()
	return lifetime > 0 && born != 0 && now.Sub(ledger.Time(born)) >= lifetime
}

// outlive forgets the lane's cooldown, slow-down and what it learned if the exit's address has changed since
// the lane was first used: each lifetime begins with the first use after the
// last one's end.
func (l *Lane) outlive(lifetime time.Duration, now ledger.Time) {
	born := l.born.Load()
	if born != 0 && !l.renewed(lifetime, now) {
		return
	}
	if !l.born.CompareAndSwap(born, uint64(now)) || born == 0 {
		return
	}
	l.learned.Store(nil)
	l.pace(now)
	l.Cell.Interval.Store(l.Cell.BaseInterval.Load())
	l.Cell.ClearCooldown(now)
	l.strikes.Store(0)
	l.trouble.Store(0)
}
