// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"hash/maphash"

	"github.com/egressd/egressd/userspace/http1"
)

// jobs makes numbers of requests. Its secret keeps whoever reads events from
// trying out what was asked for.
var jobs = maphash.MakeSeed()

// job is a number that the pending request shares with those that ask for the
// same, so that a request which comes again can be told from another one. It is
// 0 while nobody listens, and for requests whose head does not say what they ask
// for: those of methods that may not be repeated carry it in their bodies.
func (c *conn) job() uint64 {
	if !c.l.p.cfg.Events.Dispatches() || c.kind&(http1.ForCONNECT|http1.ForUpgrade) != 0 ||
		!repeatable(c.req.Method, c.client.buf[c.client.r:c.client.r+c.req.Len]) {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(jobs)
	for _, part := range [][]byte{c.req.Method, c.req.Authority, c.req.Target} {
		// Errors are not: Hash never fails.
		_, _ = h.Write(part)
		_ = h.WriteByte(' ')
	}
	if key, told := http1.Field(c.client.buf[c.client.r:c.client.r+c.req.Len], "idempotency-key"); told {
		_, _ = h.Write(key)
	}
	return max(h.Sum64(), 1)
}
