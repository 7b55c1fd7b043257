// SPDX-License-Identifier: Apache-2.0

package socks

// Server consumes the next message of the proxy at the start of b.
func (o *Observer) Server(b []byte) (n int, ev Event, err error) {
	switch {
	case o.err != nil:
		return 0, None, o.err
	case len(b) == 0:
		return 0, None, nil
	case o.opaque, o.server >= sendsTunnel:
		return len(b), o.rest(), nil
	case o.client == sendsFirst,
		o.server == sendsAuthResult && !o.authed,
		o.server == sendsReply && o.client != sendsPayload:
		return o.fail(errUnasked)
	case o.server == sendsMethod:
		return o.method(b)
	case o.server == sendsAuthResult:
		return o.authResult(b)
	case o.version == 4:
		return o.reply4(b)
	}
	return o.reply5(b)
}

// method reads VER METHOD (RFC 1928 §3). A proxy that takes no notice of the
// offer and wants no password, or wants one, is still understood; what the
// client makes of it is the client's.
func (o *Observer) method(b []byte) (int, Event, error) {
	if b[0] != 5 {
		return o.fail(errReplyVersion)
	}
	if len(b) < 2 {
		return 0, None, nil
	}
	switch b[1] {
	case methodNotAny:
		return o.end(2, b[1], NoMethod)
	case methodNone:
		if o.authed {
			return o.fail(errOtherMethod)
		}
		o.server = sendsReply
	case methodUserPassword:
		if o.client == sendsPayload && !o.authed {
			return o.fail(errOtherMethod)
		}
		o.server = sendsAuthResult
	default:
		if o.offers&offersOther == 0 {
			return o.fail(errNotOffered)
		}
		o.opaque = true
		return 2, Opaque, nil
	}
	return 2, MethodChosen, nil
}

// authResult reads VER STATUS (RFC 1929 §2). Some proxies write the version of
// SOCKS there, which clients forgive.
func (o *Observer) authResult(b []byte) (int, Event, error) {
	switch {
	case b[0] != 1 && b[0] != 5:
		return o.fail(errReplyVersion)
	case len(b) < 2:
		return 0, None, nil
	case b[1] != 0:
		return o.end(2, b[1], AuthFailed)
	}
	o.server = sendsReply
	return 2, AuthResult, nil
}

// reply4 reads VN CD DSTPORT DSTIP. VN is 0, but some proxies repeat the
// version of the request.
func (o *Observer) reply4(b []byte) (int, Event, error) {
	const n = 8
	switch {
	case b[0] != 0 && b[0] != 4:
		return o.fail(errReplyVersion)
	case len(b) < n:
		return 0, None, nil
	}
	return o.end(n, b[1], outcome4(b[1]))
}

// reply5 reads VER REP RSV ATYP BND.ADDR BND.PORT (RFC 1928 §6). A refusal
// without an address is as good as one with.
func (o *Observer) reply5(b []byte) (int, Event, error) {
	const head = 4
	switch {
	case b[0] != 5:
		return o.fail(errReplyVersion)
	case len(b) < head:
		return 0, None, nil
	}
	outcome, n := outcome5(b[1]), 0
	switch b[3] {
	case addressIPv4:
		n = head + lenIPv4 + lenPort
	case addressIPv6:
		n = head + lenIPv6 + lenPort
	case addressDomain:
		if len(b) == head {
			return 0, None, nil
		}
		n = head + 1 + int(b[head]) + lenPort
	default:
		if outcome == Granted {
			return o.fail(errAddressType)
		}
		n = head
	}
	if len(b) < n {
		return 0, None, nil
	}
	return o.end(n, b[1], outcome)
}

// end takes the outcome of a message of n bytes.
func (o *Observer) end(n int, code byte, outcome Outcome) (int, Event, error) {
	o.code, o.outcome = code, outcome
	switch {
	case outcome != Granted:
		o.server = sendsNothing
		return n, Failed, nil
	case o.command == Bind && o.server == sendsReply:
		o.server = sendsSecondReply
		return n, Reply, nil
	}
	o.server = sendsTunnel
	return n, Done, nil
}
