// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/fleet"
	"github.com/egressd/egressd/userspace/member"
)

// fleetCalls counts what the store was asked.
type fleetCalls [shared.Watch + 1]struct{ ok, failed, nanos atomic.Uint64 }

func (c *fleetCalls) observe(o fleet.Outcome) {
	n := &c[o.Kind]
	if o.Err != nil {
		n.failed.Add(1)
	} else {
		n.ok.Add(1)
	}
	n.nanos.Add(uint64(max(0, o.Took)))
}

// joinFleet makes this host a member of the fleet that the policy names. A store
// that is down is no reason not to start.
func (d *Daemon) joinFleet(f *policy.Fleet) error {
	if f == nil {
		return nil
	}
	host := f.Host
	if host == "" {
		var err error
		if host, err = hostName(); err != nil {
			return fmt.Errorf("make a name for this host in the fleet: %w; write one as fleet.host", err)
		}
	}
	store, err := fleet.New(fleet.Config{URL: f.Redis, Timeout: f.Timeout, Logger: d.log, Observe: d.fleetCalls.observe})
	if err != nil {
		return err
	}
	d.host = host
	d.closeLater(store.Close)
	m := member.New(member.Config{Store: store, Host: host, Now: d.clock.Now, Follow: d.gate.Follow})
	d.closeLater(m.Close)
	d.engine.Join(m, host, d.clock.Now())
	d.log.Info("member of a fleet", "store", f.Redis, "host", host)
	return nil
}

// hostName tells this host, since its last boot, from others, and network
// namespaces of one machine from each other: they are as good as hosts.
func hostName() (string, error) {
	name, err1 := os.Hostname()
	boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	netns, err3 := loader.NetnsCookie()
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", err
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(boot)), "-")
	return fmt.Sprintf("%s/%s/%d", name, id, netns), nil
}

// sameFleet reports whether a reload can go from one to the other: what the
// store is, and who this host is there, only counts at the start.
func sameFleet(a, b *policy.Fleet) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Redis.Same(b.Redis) && a.Host == b.Host && a.Timeout == b.Timeout
}

// membership shows this host's part in a fleet; nil if it has none.
func (d *Daemon) membership(lanes []*policy.Lane, now ledger.Time) *admin.Member {
	f := d.engine.Policy().Fleet
	if f == nil {
		return nil
	}
	m := &admin.Member{Store: f.Redis.String(), Host: d.host, Lanes: map[string]int{}}
	for _, l := range lanes {
		if s := l.Shared(); s != nil {
			m.Lanes[s.State(now).Mode.String()]++
		}
	}
	return m
}

// fleetOf shows a lane's part in the fleet; nil if it has none.
func fleetOf(l *policy.Lane, now ledger.Time) *admin.Fleet {
	s := l.Shared()
	if s == nil {
		return nil
	}
	state := s.State(now)
	out := &admin.Fleet{Scheme: state.Scheme.String(), Mode: state.Mode.String(), Hosts: state.Hosts, Held: state.Held}
	if !math.IsInf(state.Bound, 1) {
		out.Bound = &state.Bound
	}
	return out
}

// fleetCallCounts are the calls to the store, for Prometheus.
func (d *Daemon) fleetCallCounts() (out []metrics.FleetCalls) {
	if d.engine.Policy().Fleet == nil {
		return nil
	}
	for kind := shared.Book; kind <= shared.Watch; kind++ {
		n := &d.fleetCalls[kind]
		out = append(out, metrics.FleetCalls{
			Kind: kind.String(), OK: n.ok.Load(), Failed: n.failed.Load(), Seconds: float64(n.nanos.Load()) / 1e9,
		})
	}
	return out
}
