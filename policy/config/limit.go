// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// ParseLimit parses the flag --limit of egressd exec:
//
//	HOST[:PORT]=RATE[,burst=N]
//
// HOST is what a policy file takes under match.hosts; an IPv6 address with a
// port stands in brackets. The budget has the defaults of a policy file and is
// named after HOST[:PORT], the slash of a CIDR written as an underscore, so
// two flags for the same destination give two budgets of one name. Errors are
// one line and quote the flag.
func ParseLimit(text string) (*policy.Budget, error) {
	fail := func(format string, args ...any) (*policy.Budget, error) {
		return nil, fmt.Errorf("--limit %q: %w", clip(text), fmt.Errorf(format, args...))
	}
	where, rest, ok := strings.Cut(text, "=")
	if !ok {
		return fail("has no rate; write it as HOST=RATE, as in store.example.com=1/s")
	}
	host, port, err := splitPort(where)
	if err != nil {
		return fail("%w", err)
	}
	b := defaultBudget()
	pattern, err := parseHost(host)
	if err != nil {
		return fail("host %w", err)
	}
	b.Match.Hosts = []policy.HostPattern{pattern}
	if port != 0 {
		b.Match.Ports, b.Match.PortsNamed = []uint16{port}, true
	}
	b.Name = strings.ReplaceAll(strings.ToLower(where), "/", "_")

	rate, options, more := strings.Cut(rest, ",")
	if b.Rate, err = parseRate(rate); err != nil {
		return fail("rate %w", err)
	}
	if more {
		burst, ok := strings.CutPrefix(options, "burst=")
		if !ok {
			return fail("unknown option %q; only burst=N may follow the rate", clip(options))
		}
		if b.Burst, err = parseDecimal(burst); err != nil || b.Burst < 1 || b.Burst > maxBurst {
			return fail("burst must be a number from 1 to %d, not %q", maxBurst, clip(burst))
		}
		if err := checkBurst(b.Burst, b.Rate); err != nil {
			return fail("burst %w", err)
		}
	}
	return b, nil
}

// splitPort splits HOST[:PORT]; port is 0 if there is none. A bare IPv6
// address is all host.
func splitPort(s string) (host string, port uint16, err error) {
	if _, err := netip.ParseAddr(s); err == nil {
		return s, 0, nil
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return s, 0, nil
	}
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 || s[0] == '[' && (colon == 0 || s[colon-1] != ']') {
		return s, 0, nil
	}
	n, err := strconv.ParseUint(s[colon+1:], 10, 16)
	if err != nil || n == 0 || !isDigits(s[colon+1:]) {
		return "", 0, fmt.Errorf("port must be from 1 to 65535, not %q", clip(s[colon+1:]))
	}
	return s[:colon], uint16(n), nil
}
