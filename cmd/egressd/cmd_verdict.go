// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// verdictOptions are the flags of verdict.
type verdictOptions struct {
	at      string
	connect bool
	host    string
	config  string
}

// judged is what verdict prints. What the answer does not tell is null.
type judged struct {
	Kind      string   `json:"kind"`
	DelayMs   *int64   `json:"delay_ms"`
	Limit     *int64   `json:"limit"`
	Remaining *int64   `json:"remaining"`
	ResetMs   *int64   `json:"reset_ms"`
	WindowMs  *int64   `json:"window_ms"`
	RatePerS  *float64 `json:"rate_per_s"`
	Dialect   *string  `json:"dialect"`
}

func newVerdictCommand(e *env) *cobra.Command {
	var o verdictOptions
	cmd := &cobra.Command{
		Use:   "verdict",
		Short: "read a response head and print what egressd makes of it",
		Long: `verdict reads a response head on standard input, as curl -i or curl -v prints
it, and prints as JSON what egressd would make of it. Of several heads, as after
redirects, it takes the last; a body is ignored.

  curl -sD- -o /dev/null https://api.example.com/ | egressd verdict

The fields are kind (ok, limited, capacity, challenge, exit-trouble or error),
delay_ms, limit, remaining, reset_ms, window_ms, rate_per_s and dialect. What the
answer does not tell is null.`,
		Args: cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			return e.verdict(o)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.at, "at", "", "time of receipt, as in 2026-11-29T12:00:00Z (default now)")
	flags.BoolVar(&o.connect, "connect", false, "it answers a CONNECT, so it comes from the exit")
	flags.StringVar(&o.host, "host", "", "whose answer it is; with --config, its budget says what counts")
	configFlag(cmd, &o.config, "")
	return cmd
}

func (e *env) verdict(o verdictOptions) error {
	h := verdict.Head{Connect: o.connect, At: time.Now()}
	if o.at != "" {
		at, err := time.Parse(time.RFC3339, o.at)
		if err != nil {
			return usagef("--at %q is no time; write it as in 2026-11-29T12:00:00Z", o.at)
		}
		h.At = at
	}
	var host string
	var port uint16
	if o.host != "" {
		var ok bool
		if host, port, ok = splitHost(o.host); !ok {
			return usagef("--host %q is no host; write a name or an address, as in api.example.com or api.example.com:8443", o.host)
		}
	}
	var statuses []int
	if o.config != "" {
		p, err := loadPolicy(o.config)
		if err != nil {
			return err
		}
		h.Dialects = p.Dialects
		if host != "" {
			b := budgetFor(p, host, port)
			if b == nil {
				return fmt.Errorf("no budget of %s matches %s, so its answers count for nothing; leave --host out to judge by the defaults", o.config, o.host)
			}
			h.RetryAfterOnly, h.Only, statuses = b.HeadersOff, b.Dialect, b.Cooldown.Statuses
		}
	}
	// One byte more than is allowed tells a text that is too long.
	text, err := io.ReadAll(io.LimitReader(e.stdin, maxPaste+1))
	if err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	head, err := lastHead(text)
	if err != nil {
		return err
	}
	h.Status = head.status
	for _, f := range head.fields {
		h.Field(f.name, f.value)
	}
	return e.printJSON(newJudged(h.Verdict(statuses)))
}

func newJudged(v verdict.Verdict) judged {
	q := v.Quota
	return judged{
		Kind:      v.Kind.String(),
		DelayMs:   told(ceilMs(v.Delay), v.HasDelay),
		Limit:     told(q.Limit, q.HasLimit),
		Remaining: told(q.Remaining, q.HasRemaining),
		ResetMs:   told(ceilMs(q.Reset), q.HasReset),
		WindowMs:  told(ceilMs(q.Window), q.Window > 0),
		RatePerS:  told(q.PerSecond, q.PerSecond > 0),
		Dialect:   told(v.Dialect, v.Dialect != ""),
	}
}

// told is v for JSON, where what was not told is null.
func told[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// ceilMs is d in milliseconds, rounded up: what waits so long waits enough.
func ceilMs(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// splitHost reads a host name or address with or without a port, which is 0 if
// it was left out, and brings it into the form of a policy's patterns.
func splitHost(s string) (host string, port uint16, ok bool) {
	host = s
	if h, p, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, false
		}
		host, port = h, uint16(n)
	} else if bare, bracket := strings.CutPrefix(s, "["); bracket {
		host = strings.TrimSuffix(bare, "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().String(), port, addr.Zone() == ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || len(host) > 253 || strings.HasPrefix(host, ".") || strings.Contains(host, "..") {
		return "", 0, false
	}
	for _, c := range host {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return "", 0, false
		}
	}
	return host, port, true
}

// budgetFor is the first budget in force whose hosts and ports match; path and
// method are not looked at, since a response does not tell them. A port of 0
// matches all.
func budgetFor(p *policy.Policy, host string, port uint16) *policy.Budget {
	for _, b := range p.Budgets {
		if b.Mode == policy.Off || port != 0 && len(b.Match.Ports) > 0 && !slices.Contains(b.Match.Ports, port) {
			continue
		}
		if len(b.Match.Hosts) == 0 || slices.ContainsFunc(b.Match.Hosts, func(h policy.HostPattern) bool { return matches(h, host) }) {
			return b
		}
	}
	return nil
}

// matches reports whether a pattern names the host.
func matches(h policy.HostPattern, host string) bool {
	switch {
	case h.Any:
		return true
	case h.Prefix.IsValid():
		addr, err := netip.ParseAddr(host)
		return err == nil && h.Prefix.Contains(addr)
	case h.Suffix != "":
		return strings.HasSuffix(host, h.Suffix)
	}
	return h.Name == host
}
