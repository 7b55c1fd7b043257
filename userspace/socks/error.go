// SPDX-License-Identifier: Apache-2.0

package socks

// Error says why a handshake cannot be followed. All values are made once, at
// start, and hold no byte of a peer.
type Error struct {
	// Reason is a short text out of the closed set of Reasons, fit for a
	// metric label.
	Reason string
}

// Error returns the reason.
func (e *Error) Error() string { return "socks: " + e.Reason }

// Errors, in the order of Reasons.
var (
	errVersion      = &Error{"unknown version"}
	errNoMethods    = &Error{"no methods offered"}
	errAuthVersion  = &Error{"unknown version of authentication"}
	errAddressType  = &Error{"unknown address type"}
	errHost         = &Error{"invalid domain name"}
	errLongUser     = &Error{"user id too long"}
	errLongDomain   = &Error{"domain name too long"}
	errReplyVersion = &Error{"unknown version of a reply"}
	errUnasked      = &Error{"answer before the question"}
	errNotOffered   = &Error{"method not offered"}
	errOtherMethod  = &Error{"client went ahead with another method"}
)

var reasons = [...]*Error{
	errVersion, errNoMethods, errAuthVersion, errAddressType, errHost, errLongUser,
	errLongDomain, errReplyVersion, errUnasked, errNotOffered, errOtherMethod,
}

// Reasons returns every Reason that an Error may have, so that metrics can
// start at zero.
func Reasons() []string {
	out := make([]string, len(reasons))
	for i, e := range reasons {
		out[i] = e.Reason
	}
	return out
}
