// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
)

// proxyAt is an exit that is a proxy at ports of a host.
func proxyAt(name, host string, first, last uint16) policy.Exit {
	return policy.Exit{Name: name, Proxy: &policy.Proxy{Host: host, First: first, Last: last, PerPort: first != last}}
}

// resolver answers look-ups with what a test says.
type resolver map[string][]string

func (r resolver) lookup(_ context.Context, host string) (all []netip.Addr, err error) {
	if r[host] == nil {
		return nil, errors.New("no such host")
	}
	for _, a := range r[host] {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

// shown is what endpoints tell engine and programs, which must be the same.
func shown(t *testing.T, e *endpoints, exits []policy.Exit) (all []string) {
	t.Helper()
	byAddr, list := e.known(exits)
	if len(byAddr) != len(list) {
		t.Errorf("the engine knows %d endpoints, the programs %d", len(byAddr), len(list))
	}
	for _, p := range list {
		if exit := byAddr[p.Addr]; exit == nil || exit.Identity() != p.Exit {
			t.Errorf("at %v the engine has %v, the programs %s", p.Addr, exit, p.Exit)
		}
		all = append(all, fmt.Sprint(p.Addr, " ", p.Exit))
	}
	return all
}

func TestEndpointsOverTime(t *testing.T) {
	var log bytes.Buffer
	dns := resolver{}
	e := &endpoints{log: slog.New(slog.NewTextHandler(&log, nil)), lookup: func(ctx context.Context, host string) ([]netip.Addr, error) { return dns.lookup(ctx, host) }}
	alias := proxyAt("b", "192.0.2.7", 8001, 8001)
	alias.SameAs = "a"
	exits := []policy.Exit{
		proxyAt("a", "gw.test", 8000, 8001),
		{Name: "wg0", Interface: "wg0"},
		alias,
		proxyAt("late", "192.0.2.7", 8001, 8001),
	}
	literal := "192.0.2.7:8001 a"
	began := time.Unix(1e9, 0)
	for _, step := range []struct {
		at     time.Duration
		answer []string
		want   []string
		log    string
		newest string
	}{
		{0, nil, []string{literal}, "no address yet", ""},
		{time.Minute, []string{"192.0.2.2", "::ffff:192.0.2.1"}, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "192.0.2.2:8000 a", "192.0.2.2:8001 a", literal}, "", "192.0.2.1"},
		{2 * time.Minute, []string{"2001:db8::1"}, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "192.0.2.2:8000 a", "192.0.2.2:8001 a",
			"[2001:db8::1]:8000 a", "[2001:db8::1]:8001 a", literal}, "", "2001:db8::1"},
		{3 * time.Minute, nil, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "192.0.2.2:8000 a", "192.0.2.2:8001 a",
			"[2001:db8::1]:8000 a", "[2001:db8::1]:8001 a", literal}, "keeps the addresses", "2001:db8::1"},
		{30 * time.Minute, []string{"192.0.2.1"}, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "192.0.2.2:8000 a", "192.0.2.2:8001 a",
			"[2001:db8::1]:8000 a", "[2001:db8::1]:8001 a", literal}, "", "192.0.2.1"},
		{61 * time.Minute, []string{"192.0.2.1"}, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "192.0.2.2:8000 a", "192.0.2.2:8001 a",
			"[2001:db8::1]:8000 a", "[2001:db8::1]:8001 a", literal}, "", "192.0.2.1"},
		{61*time.Minute + 1, []string{"192.0.2.1"}, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", "[2001:db8::1]:8000 a", "[2001:db8::1]:8001 a", literal}, "", "192.0.2.1"},
		{10 * time.Hour, nil, []string{"192.0.2.1:8000 a", "192.0.2.1:8001 a", literal}, "keeps the addresses", "192.0.2.1"},
		{11 * time.Hour, []string{"0.0.0.0", "127.101.0.9", "127.0.0.1"}, []string{"127.0.0.1:8000 a", "127.0.0.1:8001 a", literal}, "none can have", "127.0.0.1"},
	} {
		log.Reset()
		dns["gw.test"] = step.answer
		now := began.Add(step.at)
		e.resolve(t.Context(), exits, now)
		e.forget(exits, now)
		if got := shown(t, e, exits); !slices.Equal(got, step.want) {
			t.Errorf("after %v: %q, want %q", step.at, got, step.want)
		}
		want := map[string]netip.Addr{}
		if step.newest != "" {
			want["gw.test"] = netip.MustParseAddr(step.newest)
		}
		if got := e.newest(); !maps.Equal(got, want) {
			t.Errorf("after %v the newest are %v, want %v", step.at, got, want)
		}
		if !strings.Contains(log.String(), step.log) || step.log == "" && log.Len() > 0 {
			t.Errorf("after %v the log has %q, want %q in it", step.at, log.String(), step.log)
		}
	}
	e.forget(nil, began)
	if got := shown(t, e, exits); !slices.Equal(got, []string{literal}) {
		t.Errorf("after the name has gone: %q", got)
	}
}

// The start waits for slow servers of names, but not for long, and takes what
// the others said.
func TestSlowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoints{log: slog.New(slog.DiscardHandler), lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			if host == "quick.test" {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		exits := []policy.Exit{proxyAt("quick", "quick.test", 80, 80)}
		for i := range 100 {
			exits = append(exits, proxyAt(fmt.Sprint("slow", i), fmt.Sprint("slow", i, ".test"), 80, 80))
		}
		began := time.Now()
		e.resolve(t.Context(), exits, began)
		if got := time.Since(began); got > resolveTimeout {
			t.Errorf("resolving took %v, want at most %v", got, resolveTimeout)
		}
		if got := shown(t, e, exits); !slices.Equal(got, []string{"192.0.2.1:80 quick"}) {
			t.Errorf("known are %q", got)
		}
	})
}
