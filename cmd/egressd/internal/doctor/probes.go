// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// Probes tells of uprobes on this machine.
type Probes struct {
	// Unsafe gives the reasons why there should be none.
	Unsafe func() ([]string, error)
	// Price measures what a probed call costs a process that is not looked at.
	Price func() (time.Duration, error)
}

// dear is the price of a call from which on it is worth to think about it: a
// request makes some ten calls.
const dear = 5 * time.Microsecond

// checkProbes says whether processes can be probed, and what that costs.
func checkProbes(p *policy.Policy, probes Probes, privileged bool) Check {
	const name = "probes"
	const without = "leave them off: tls: {sources: [keylog]}"
	r := rulesOf(p, "")
	switch {
	case r.mode < policy.Observe || !r.uprobes:
		return ok(name, "not asked for by the policy")
	case !privileged:
		return unknown(name, "placing one takes root")
	}
	why, err := probes.Unsafe()
	if err != nil {
		return unknown(name, err.Error())
	}
	if len(why) > 0 {
		return warn(name, without, "off, as %s", strings.Join(why, "; "))
	}
	price, err := probes.Price()
	if err != nil {
		return warn(name, without, "cannot be placed: %v", err)
	}
	if price >= dear {
		return warn(name, without+", where other processes use the same TLS library heavily",
			"each call of a probed function costs %v, in every process that has the library", price.Round(100*time.Nanosecond))
	}
	return ok(name, "each call of a probed function costs %v, in every process that has the library", price.Round(10*time.Nanosecond))
}
