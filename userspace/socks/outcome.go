// SPDX-License-Identifier: Apache-2.0

package socks

// Outcome is how the proxy answered.
type Outcome uint8

// Outcomes. Which code says which is told by RFC 1928 §3 and §6, RFC 1929 §2
// and, for SOCKS4, by the memo of Ying-Da Lee.
const (
	Pending            Outcome = iota
	Granted                    // SOCKS5 0, SOCKS4 90
	GeneralFailure             // SOCKS5 1, SOCKS4 91
	NotAllowed                 // SOCKS5 2: by the rules of the proxy
	NetworkUnreachable         // SOCKS5 3
	HostUnreachable            // SOCKS5 4
	Refused                    // SOCKS5 5: by the destination
	TTLExpired                 // SOCKS5 6
	UnknownCommand             // SOCKS5 7
	UnknownAddressType         // SOCKS5 8
	NoIdent                    // SOCKS4 92: the client runs no identd
	OtherIdent                 // SOCKS4 93: the client's identd names another user
	NoMethod                   // SOCKS5: none of the methods offered
	AuthFailed                 // SOCKS5: user name or password not accepted
	Unassigned                 // a code without a meaning; refused
	numOutcomes
)

var outcomes = [numOutcomes]string{
	Pending:            "pending",
	Granted:            "granted",
	GeneralFailure:     "general failure",
	NotAllowed:         "not allowed",
	NetworkUnreachable: "network unreachable",
	HostUnreachable:    "host unreachable",
	Refused:            "connection refused",
	TTLExpired:         "ttl expired",
	UnknownCommand:     "command not supported",
	UnknownAddressType: "address type not supported",
	NoIdent:            "no identd",
	OtherIdent:         "other ident",
	NoMethod:           "no acceptable method",
	AuthFailed:         "authentication failed",
	Unassigned:         "unassigned",
}

// String returns the name of o, fit for a metric label.
func (o Outcome) String() string {
	if o < numOutcomes {
		return outcomes[o]
	}
	return outcomes[Unassigned]
}

// outcome5 gives the meaning of a SOCKS5 reply code.
func outcome5(code byte) Outcome {
	if code <= 8 {
		return Granted + Outcome(code)
	}
	return Unassigned
}

// outcome4 gives the meaning of a SOCKS4 reply code.
func outcome4(code byte) Outcome {
	switch code {
	case 90:
		return Granted
	case 91:
		return GeneralFailure
	case 92:
		return NoIdent
	case 93:
		return OtherIdent
	}
	return Unassigned
}
