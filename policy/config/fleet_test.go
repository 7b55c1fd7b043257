// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/fleet"
)

func TestFleet(t *testing.T) {
	p := mustParse(t, `
budgets:
  - {name: all, rate: 20/s, burst: 5}
  - {name: strict, rate: 20/s, on_loss: closed, match: {hosts: [a.example]}}
  - {name: own, rate: 20/s, fleet: false, match: {hosts: [b.example]}}
  - {name: kept, rate: 20/s, fleet: true, on_loss: share, concurrency: 3, match: {hosts: [c.example]}}
  - {name: whole, rate: 2/s, on_loss: open, match: {hosts: [d.example]}}
exits: [{name: wg0, interface: wg0}]
fleet:
  redis: "rediss://crawler:Sup3rSecret@10.0.0.1/2?ca=/etc/ca.pem"
  hosts: 8
  timeout: 60ms
  grace: 1m
  host: crawler-1
  per_host: [direct, wg0]
`)
	f := p.Fleet
	if f == nil || f.Redis.String() != "rediss://10.0.0.1:6379/2" || f.Redis.Login().Password != "Sup3rSecret" ||
		f.Hosts != 8 || f.Timeout != 60*time.Millisecond || f.Grace != time.Minute || f.Host != "crawler-1" ||
		!slices.Equal(f.PerHost, []string{"direct", "wg0"}) || f.Loss != fleet.LossShare {
		t.Fatalf("got %+v", f)
	}
	for i, want := range []*policy.Fleet{f, {Loss: fleet.LossClosed}, nil, f, {Loss: fleet.LossOpen}} {
		switch got := p.Budgets[i].Fleet; {
		case (got == nil) != (want == nil):
			t.Errorf("budget %d: got %+v, want %+v", i, got, want)
		case got == nil:
		case got.Loss != want.Loss || got.Hosts != 8 || (got == f) != (want == f):
			t.Errorf("budget %d: got %+v, want %+v", i, got, want)
		}
	}
	told := strings.Join(Describe(p), "\n")
	for _, want := range []string{
		"all: ", "by all hosts together (leases, at most 8 more with 8 hosts), their shares without the store",
		"nothing without the store", "; on each host of the fleet", "3 at once on each, their shares",
		"(slots, at most 1.2 more with 8 hosts), WARNING: on each host all of it without the store",
		"fleet: budgets are held together with all hosts at rediss://10.0.0.1:6379/2, but for the exits direct and wg0",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("%q is not in:\n%s", want, told)
		}
	}
	if strings.Contains(told, "Sup3r") || strings.Contains(told, "crawler:") {
		t.Errorf("described with its secret:\n%s", told)
	}
}

// TestFleetDefaults has no fleet where the file has none.
func TestFleetDefaults(t *testing.T) {
	if p := mustParse(t, "budgets: [{rate: 1/s}]"); p.Fleet != nil || p.Budgets[0].Fleet != nil {
		t.Errorf("got %+v", p.Fleet)
	}
	p := mustParse(t, "fleet: {redis: redis://h}\nbudgets: [{rate: 1/s}]")
	if told := Describe(p)[0]; !strings.HasSuffix(told, "with 1 host), their shares without the store once it told how many they are (hosts: N says so before)") {
		t.Errorf("described as %s", told)
	}
	p = mustParse(t, "fleet: {redis: redis-unix:///run/redis.sock}\nbudgets: [{rate: 1/s}]")
	if f := p.Fleet; f == nil || f.Loss != fleet.LossShare || f.Timeout != fleet.DefaultTimeout || f.Grace != fleet.DefaultGrace || f.Hosts != 0 || f.Host != "" {
		t.Errorf("got %+v", f)
	}
}
