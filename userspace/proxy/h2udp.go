// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/http1"
)

// connectUDP is the protocol by which a client asks for UDP through a proxy
// (RFC 9298 §3).
const connectUDP = "connect-udp"

// barsUDP says that the policy refuses QUIC, and with it what could carry it.
func (c *conn) barsUDP() bool { return c.l.p.cfg.Engine.Policy().QUIC == policy.QUICRefuse }

// udpRefusal is the answer to who asks for UDP where the policy refuses it: 403,
// since no waiting and no password changes that. Clients then go by TCP.
func udpRefusal() *http1.Refusal {
	return &http1.Refusal{
		Status:  403,
		Error:   "http_request_denied",
		Details: "the policy of this host refuses UDP",
		Date:    time.Now(),
	}
}

// asksForUDP reports whether the pending request of HTTP/1.1 offers to switch to
// UDP through a proxy (RFC 9298 §3.2).
func (c *conn) asksForUDP() (asks bool) {
	if !c.req.Upgrade {
		return false
	}
	head := c.client.buf[c.client.r : c.client.r+c.req.Len]
	http1.Fields(head, func(name, value []byte) bool {
		if http1.EqualFold(name, "upgrade") {
			for p := range bytes.SplitSeq(value, []byte(",")) {
				asks = asks || http1.EqualFold(bytes.TrimSpace(p), connectUDP)
			}
		}
		return true
	})
	return asks
}

// refuseUDP answers such a request.
func (c *conn) refuseUDP() {
	r := udpRefusal()
	r.Close = c.req.Close || c.req.Expect100
	c.answer(http1.AppendRefusal(nil, r), !r.Close)
}
