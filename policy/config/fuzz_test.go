// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// checkBudget fails if a budget could not be compiled into a cell: whatever
// is parsed must be in range.
func checkBudget(t *testing.T, b *policy.Budget) {
	t.Helper()
	interval := b.Rate.Interval()
	switch {
	case b.Name == "" || strings.ContainsAny(b.Name, "/ \t\n"):
		t.Errorf("name %q is no part of a lane id", b.Name)
	case b.Rate == policy.Rate{} && (b.Auto || b.Window.Limit == 0 && b.Concurrency == 0):
		t.Errorf("%s: nothing limits it", b.Name)
	case b.Rate != policy.Rate{} && (interval < minInterval || interval > maxInterval+1):
		t.Errorf("%s: interval %v is out of range", b.Name, interval)
	case !(b.Burst > 0) || b.Burst*float64(interval) > 1.01*float64(maxRefill)+float64(time.Second):
		t.Errorf("%s: burst %v at interval %v is out of range", b.Name, b.Burst, interval)
	case b.Cost.Units == 0 || float64(b.Cost.Units)*float64(interval) > 1.01*float64(maxRefill)+float64(time.Second):
		t.Errorf("%s: cost %d at interval %v is out of range", b.Name, b.Cost.Units, interval)
	case b.Cost.Header != strings.ToLower(b.Cost.Header) || strings.ContainsAny(b.Cost.Header, ": \r\n"):
		t.Errorf("%s: cost header %q", b.Name, b.Cost.Header)
	case b.Window != policy.Window{} && (b.Window.Limit < b.Cost.Units || b.Window.Limit > maxWindowLimit || b.Window.Per < time.Millisecond || b.Window.Per > maxWindow):
		t.Errorf("%s: window %+v, cost %d", b.Name, b.Window, b.Cost.Units)
	case b.Concurrency < 0 || b.Concurrency > maxConcurrency:
		t.Errorf("%s: concurrency %d", b.Name, b.Concurrency)
	case b.Retry.Attempts < 2 || b.Retry.Attempts > 10 || b.Retry.MaxBody < 0 || b.Retry.MaxBody > 16<<20:
		t.Errorf("%s: retry %+v", b.Name, b.Retry)
	case b.Unit == policy.Connections && (b.Per&policy.PerPath != 0 || b.Retry.Absorb || b.Cost.Header != "" || b.Match.Path != ""):
		t.Errorf("%s: a connection is taken for a request", b.Name)
	case b.HeadersOff && b.Dialect != nil:
		t.Errorf("%s: headers off and dialect %s", b.Name, b.Dialect.Name)
	case len(b.Match.Ports) == 0:
		t.Errorf("%s: no ports", b.Name)
	case b.Match.Path != "" && b.Match.Path[0] != '/':
		t.Errorf("%s: path %q", b.Name, b.Match.Path)
	case b.Queue.Max < 0 || b.Queue.MaxWait < 0 || b.Queue.MaxWait > 24*time.Hour:
		t.Errorf("%s: queue %+v", b.Name, b.Queue)
	case b.Cooldown.Default <= 0 || b.Cooldown.Default > b.Cooldown.Max || b.Cooldown.Max > 24*time.Hour:
		t.Errorf("%s: cooldown %+v", b.Name, b.Cooldown)
	case !(0 <= b.Cooldown.Spread && b.Cooldown.Spread <= 1) || len(b.Cooldown.Statuses) == 0:
		t.Errorf("%s: cooldown %+v", b.Name, b.Cooldown)
	case !(0 < b.Recovery.Factor && b.Recovery.Factor <= 1) || b.Recovery.Step < 1:
		t.Errorf("%s: recovery %+v", b.Name, b.Recovery)
	}
	for _, port := range b.Match.Ports {
		if port == 0 {
			t.Errorf("%s: port 0", b.Name)
		}
	}
	for _, h := range b.Match.Hosts {
		set := 0
		for _, is := range []bool{h.Name != "", h.Suffix != "", h.Any, h.Prefix.IsValid()} {
			if is {
				set++
			}
		}
		if set != 1 || h.Name != strings.ToLower(h.Name) || h.Suffix != strings.ToLower(h.Suffix) {
			t.Errorf("%s: host %+v", b.Name, h)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range append(files, example) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("f", text)
		if (p == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", p, err)
		}
		if err != nil {
			checkErrors(t, err, text)
			return
		}
		if len(p.Scope.Cgroups) == 0 {
			t.Error("a policy for no process")
		}
		if n := Shapes(p.Budgets); n > policy.MaxShapes {
			t.Errorf("%d different per", n)
		}
		names := map[string]bool{}
		for _, b := range p.Budgets {
			if names[b.Name] {
				t.Errorf("two budgets are named %s", b.Name)
			}
			names[b.Name] = true
			checkBudget(t, b)
		}
		exits := map[string]bool{policy.DirectExit: true}
		for _, e := range p.Exits {
			set := 0
			for _, is := range []bool{e.Interface != "", e.Source.IsValid(), e.Mark != 0, e.UIDs.Set, e.Proxy != nil} {
				if is {
					set++
				}
			}
			if set != 1 || e.Name == "" || exits[e.Name] {
				t.Errorf("exit %+v", e)
			}
			exits[e.Name] = true
		}
		checkPools(t, p, exits)
		if got := Describe(p); len(got) != len(p.Budgets)+len(p.Pools) {
			t.Errorf("%d lines describe %d budgets and %d pools", len(got), len(p.Budgets), len(p.Pools))
		}
	})
}

// checkPools fails if a pool could not be reached, or chosen from.
func checkPools(t *testing.T, p *policy.Policy, exits map[string]bool) {
	t.Helper()
	names := map[string]bool{}
	listens := map[netip.AddrPort]bool{}
	for _, pool := range p.Pools {
		if names[pool.Name] || exits[pool.Name] || pool.Name == "" {
			t.Errorf("the name %q of a pool is taken", pool.Name)
		}
		if a := pool.Listen; listens[a] || !a.Addr().IsLoopback() || a.Addr().Is4In6() || a.Port() == 0 {
			t.Errorf("pool %s listens at %s", pool.Name, a)
		}
		names[pool.Name], listens[pool.Listen] = true, true
		if n := len(pool.Members); n == 0 || n > policy.MaxMembers {
			t.Errorf("pool %s has %d members", pool.Name, n)
		}
		members := map[string]bool{}
		for i := range pool.Members {
			m := &pool.Members[i]
			if m.Exit.Proxy == nil || m.Port < m.Exit.Proxy.First || m.Port > m.Exit.Proxy.Last || m.Weight < 1 || m.Weight > maxWeight || members[m.String()] {
				t.Errorf("pool %s has the member %s of port %d, weight %d", pool.Name, m, m.Port, m.Weight)
			}
			members[m.String()] = true
		}
		policy.NewPicker(pool).Pick(policy.PickKey{Host: "a.example"}, 1, func(*policy.Member) policy.Health { return policy.Health{} })
	}
}

// checkErrors fails if an editor could not follow the errors.
func checkErrors(t *testing.T, err error, text []byte) {
	t.Helper()
	var errs Errors
	if !errors.As(err, &errs) || len(errs) == 0 {
		t.Fatalf("error %v of type %T, want Errors", err, err)
	}
	// YAML knows more line breaks than this one: CR, NEL, LS and PS.
	lines := 1 + strings.Count(strings.NewReplacer("\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(string(text)), "\n")
	last := 1
	for _, e := range errs {
		if e.Line < last || e.Line > lines {
			t.Errorf("line %d of %d after line %d: %v", e.Line, lines, last, e)
		}
		last = e.Line
		if e.Msg == "" || strings.ContainsAny(e.Msg, "\n\r") {
			t.Errorf("message %q is not one line", e.Msg)
		}
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{
		"store.example.com=1/s", "*:81=90/min,burst=5", "[::1]:443=1/s", "2001:db8::/32=0.1/s", "a:b:c=1/s", "=", "a=1/s,burst=",
		"a=auto,window=100/1m,concurrency=4", "a=1/s,concurrency=4,burst=.5", "a=1/s,window=/", "a=1/s,tls=observe,burst=2", "a=1/s,burst=2,burst=2",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ParseLimit(text)
		if (b == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", b, err)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q is not one line", err)
			}
			return
		}
		checkBudget(t, b)
		if len(b.Match.Hosts) != 1 {
			t.Errorf("%d hosts, want 1", len(b.Match.Hosts))
		}
	})
}
