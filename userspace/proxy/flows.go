// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sort"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// FlowInfo is a client connection in the hands of the proxy.
type FlowInfo struct {
	policy.Flow               // Exit is that of its last request
	Host        string        // of its last request, or of its TLS hello; may be empty
	State       string        // sniffing, handshake, idle, held, connecting, sending, answering or tunnel
	Lane        string        // id of the most specific lane of what it carries; may be empty
	Requests    int           // let through so far
	Sight       policy.Sight  // how the inside of a TLS connection is seen
	Observable  bool          // the policy allows to look into its TLS
	Age         time.Duration // since it was accepted
}

// Flows lists the connections, oldest first.
func (p *Proxy) Flows() []FlowInfo {
	var (
		mu  sync.Mutex
		all []FlowInfo
		wg  sync.WaitGroup
	)
	for _, l := range p.loops {
		wg.Add(1)
		ok := l.post(func() {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			for _, c := range l.slots {
				if c != nil {
					all = append(all, c.info())
				}
			}
		})
		if !ok {
			wg.Done()
		}
	}
	wg.Wait()
	sort.Slice(all, func(i, j int) bool { return all[i].At < all[j].At })
	return all
}

func (c *conn) info() FlowInfo {
	flow := c.flow
	flow.Exit = c.exitOf()
	return FlowInfo{
		Flow:       flow,
		Host:       c.host,
		State:      c.stateName(),
		Lane:       c.laneID(),
		Requests:   c.requests,
		Sight:      c.sight,
		Observable: c.enrolled,
		Age:        c.l.now.Sub(c.opened),
	}
}

func (c *conn) stateName() string {
	switch c.rq {
	case rqSniff:
		return "sniffing"
	case rqSOCKS, rqEnding:
		return "handshake"
	case rqHead, rqDiscard:
		return "idle"
	case rqHeld:
		return "held"
	case rqDial:
		return "connecting"
	case rqSend, rqReplay:
		return "sending"
	case rqDone, rqLinger:
		return "answering"
	default:
		return "tunnel"
	}
}
