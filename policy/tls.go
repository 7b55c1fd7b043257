// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// TLSMode says how far egressd looks into TLS connections. Of two modes the
// greater looks further.
type TLSMode uint8

// Modes of TLS.
const (
	// Passthrough reads no more than the ClientHello and the headers of records.
	Passthrough TLSMode = iota
	// Observe reads a copy with keys that the client's process logs, or what
	// uprobes in it show. No byte changes.
	Observe
	// Terminate ends TLS here with a certificate of the host's own authority
	// and speaks TLS to the origin again.
	Terminate
)

// String is the mode as the policy file writes it.
func (m TLSMode) String() string {
	switch m {
	case Observe:
		return "observe"
	case Terminate:
		return "terminate"
	}
	return "passthrough"
}

// TLS says how TLS connections are treated, beside what each budget says.
type TLS struct {
	Mode TLSMode // of budgets that do not say, and of what no budget names
	// KeyLog and Uprobes are the sources that Observe may use.
	KeyLog, Uprobes bool
	KeyDir          string // where the pipes are that processes log keys to
	CADir           string // where Terminate has the certificate authority
	// Roots is a PEM file of certificates that origins are verified against,
	// besides those of the system; "" for none.
	Roots string
}

// QUICMode says what becomes of UDP to ports that the policy names.
type QUICMode uint8

// Modes of QUIC.
const (
	QUICAllow  QUICMode = iota // it is counted
	QUICRefuse                 // it fails at once, so that clients fall back to TCP
)

// TLSMode is how far a connection to host at dest may be looked into: as far
// as any of the budgets allows that may name its requests.
func (e *Engine) TLSMode(host string, dest netip.AddrPort) TLSMode {
	s := e.state.Load()
	mode, named := Passthrough, false
	candidates := s.matcher.find(host)
	for i := range candidates {
		c := &candidates[i]
		if _, ok := c.where(host, dest); !ok || c.Budget == exitTrouble {
			continue
		}
		named = true
		mode = max(mode, c.TLS)
	}
	if !named {
		return s.policy.TLS.Mode
	}
	return mode
}
