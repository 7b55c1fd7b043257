// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"maps"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
)

// maxEndpoints is half of what the map holds, so that one set can follow
// another, additions first.
const maxEndpoints = 65536

// wantedEndpoints checks the endpoints of forward proxies and gives each the
// identity of its exit. Of several exits at one endpoint the first counts.
func wantedEndpoints(list []policy.Endpoint) (map[egressEndpoint]string, error) {
	want := make(map[egressEndpoint]string, len(list))
	for _, e := range list {
		switch {
		case !e.Addr.IsValid() || e.Addr.Port() == 0 || e.Addr.Addr().IsUnspecified():
			return nil, fmt.Errorf("endpoint %s of exit %s is no address and port", e.Addr, e.Exit)
		case e.Exit == "" || e.Exit == policy.DirectExit:
			return nil, fmt.Errorf("endpoint %s has exit %q: what goes to a proxy is an exit of its own, name it", e.Addr, e.Exit)
		case TokenPrefix.Contains(e.Addr.Addr().Unmap()):
			return nil, fmt.Errorf("endpoint %s of exit %s is within %s, which egressd redirects to: choose another loopback address",
				e.Addr, e.Exit, TokenPrefix)
		}
		key := egressEndpoint{Addr: egressAddr{Bytes: e.Addr.Addr().As16()}, Port: e.Addr.Port()}
		if _, ok := want[key]; !ok {
			want[key] = e.Exit
		}
	}
	if len(want) > maxEndpoints {
		return nil, fmt.Errorf("%d endpoints of proxies, at most %d are allowed: narrow the port ranges of proxy exits", len(want), maxEndpoints)
	}
	return want, nil
}

// applyEndpoints makes the programs redirect what goes to these endpoints, and
// count it under the exit behind each.
func (k *Kernel) applyEndpoints(identities map[egressEndpoint]string) error {
	k.nameExits(maps.Values(identities))
	want := make(map[egressEndpoint]uint32, len(identities))
	for key, name := range identities {
		want[key] = k.exits.ids[name]
	}
	have := k.named.endpoints
	// The count opens the map to the programs.
	if len(want) > 0 {
		atomic.StoreUint32(&k.control.Endpoints, uint32(len(want)))
	}
	if err := syncMap(k.objs.Endpoints, have, want); err != nil {
		return fmt.Errorf("write endpoints of proxies: %w", err)
	}
	atomic.StoreUint32(&k.control.Endpoints, uint32(len(have)))
	return nil
}
