// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// ParseLimit parses the flag --limit of egressd exec:
//
//	HOST[:PORT]=RATE[,burst=N][,window=N/DURATION][,concurrency=N][,tls=MODE]
//
// HOST is what a policy file takes under match.hosts; an IPv6 address with a
// port stands in brackets. RATE is what one takes under rate, the window is a
// sliding one, and the options may be in any order. The budget has the defaults
// of a policy file and is named after HOST[:PORT], the slash of a CIDR written
// as an underscore, so two flags for the same destination give two budgets of
// one name. Errors are one line and quote the flag.
func ParseLimit(text string) (*policy.Budget, error) {
	fail := func(format string, args ...any) (*policy.Budget, error) {
		return nil, fmt.Errorf("--limit %q: %w", strict.Clip(text), fmt.Errorf(format, args...))
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
	if rate == autoRate {
		b.Rate, b.Auto = autoStart, true
	} else if b.Rate, err = parseRate(rate); err != nil {
		return fail("rate %w", err)
	}
	if more {
		if err := limitOptions(b, options); err != nil {
			return fail("%w", err)
		}
	}
	return b, nil
}

// limitOptions reads what follows the rate of a limit into b.
func limitOptions(b *policy.Budget, options string) error {
	seen := map[string]bool{}
	for option := range strings.SplitSeq(options, ",") {
		key, s, _ := strings.Cut(option, "=")
		if seen[key] {
			return fmt.Errorf("%s is given twice; remove one", strict.Clip(key))
		}
		seen[key] = true
		var err error
		switch key {
		case "burst":
			b.Burst, err = parseBurst(s, b.Rate)
		case "window":
			b.Window, err = parseWindow(s)
		case "concurrency":
			b.Concurrency, err = parseInteger(s, 1, maxConcurrency)
		case "tls":
			b.TLS, err = parseTLS(s)
		default:
			return fmt.Errorf("unknown option %q; burst=N, window=N/DURATION, concurrency=N and tls=MODE may follow the rate", strict.Clip(option))
		}
		if err != nil {
			return fmt.Errorf("%s %w", key, err)
		}
	}
	return nil
}

func parseBurst(s string, rate policy.Rate) (float64, error) {
	n, err := strict.ParseDecimal(s)
	if err != nil || !isBurst(n) {
		return 0, fmt.Errorf("must be %s, not %q", burstWanted, strict.Clip(s))
	}
	return n, checkBurst(n, rate)
}

// parseWindow reads "100/1m": what may go, and the length of the window.
func parseWindow(s string) (policy.Window, error) {
	count, per, ok := strings.Cut(s, "/")
	if !ok {
		return policy.Window{}, fmt.Errorf("%q has no length; write it as 100/1m", strict.Clip(s))
	}
	limit, err := parseInteger(count, 1, maxWindowLimit)
	if err != nil {
		return policy.Window{}, fmt.Errorf("limit %w", err)
	}
	d, err := parseDuration(per, time.Millisecond, maxWindow)
	if err != nil {
		return policy.Window{}, fmt.Errorf("length %w", err)
	}
	return policy.Window{Limit: uint64(limit), Per: d}, nil
}

func parseTLS(s string) (policy.TLSMode, error) {
	i := slices.Index(tlsWords, s)
	if i < 0 {
		return 0, fmt.Errorf("must be %s, not %q", strict.Series(tlsWords, "or"), strict.Clip(s))
	}
	return policy.TLSMode(i), nil
}

func parseInteger(s string, low, high int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || !isDigits(s) || leadingZero(s) || n < low || n > high {
		return 0, fmt.Errorf("must be a whole number from %d to %d, not %q", low, high, strict.Clip(s))
	}
	return n, nil
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
		return "", 0, fmt.Errorf("port must be from 1 to 65535, not %q", strict.Clip(s[colon+1:]))
	}
	return s[:colon], uint16(n), nil
}
