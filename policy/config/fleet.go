// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/redisurl"
)

// Bounds of the section fleet.
const (
	maxFleetHosts   = 100_000
	minFleetTimeout = 50 * time.Millisecond
	maxFleetHost    = 255
)

// lossWords are the values of on_loss, each at the index of its constant.
var lossWords = []string{
	fleet.LossShare:  fleet.LossShare.String(),
	fleet.LossClosed: fleet.LossClosed.String(),
	fleet.LossOpen:   fleet.LossOpen.String(),
}

// fleet reads with whom budgets are held together. exits are those of the file.
func (v value) fleet(exits []policy.Exit) *policy.Fleet {
	f := &policy.Fleet{Timeout: fleet.DefaultTimeout, Grace: fleet.DefaultGrace}
	before := len(v.r.Errs)
	if !v.mapping(
		field{"redis", func(v value) { f.Redis = v.redisURL() }},
		field{"on_loss", func(v value) { f.Loss = v.loss(f.Loss) }},
		field{"hosts", func(v value) { f.Hosts, _ = v.integer(1, maxFleetHosts) }},
		field{"timeout", func(v value) {
			if d, ok := v.duration(minFleetTimeout, fleet.MaxTimeout); ok {
				f.Timeout = d
			}
		}},
		field{"grace", func(v value) {
			if d, ok := v.duration(time.Second, maxCooldown); ok {
				f.Grace = d
			}
		}},
		field{"host", func(v value) { f.Host = v.fleetHost() }},
		field{"per_host", func(v value) { f.PerHost = v.perHost(exits) }},
	) {
		return nil
	}
	if _, has := v.at("redis"); !has {
		v.Reject("has no redis; write where the store is, as in redis: redis://10.0.0.1:6379")
	}
	if len(v.r.Errs) > before {
		return nil
	}
	return f
}

func (v value) redisURL() redisurl.URL {
	s, ok := v.text("redis://10.0.0.1:6379")
	if !ok {
		return redisurl.URL{}
	}
	u, err := redisurl.Parse(s)
	if err != nil {
		v.Reject("%v", err) // which quotes nothing of it
	}
	return u
}

// loss reads what is done without the store.
func (v value) loss(otherwise fleet.Loss) fleet.Loss {
	s, ok := v.word(lossWords...)
	if !ok {
		return otherwise
	}
	l, err := fleet.ParseLoss(s)
	if err != nil {
		v.Reject("%v", err)
	}
	return l
}

func (v value) fleetHost() string {
	s, ok := v.text("crawler-1")
	if !ok {
		return ""
	}
	if s == "" || len(s) > maxFleetHost || strings.ContainsFunc(s, isControl) {
		v.Reject("%q is no name of a host; write 1 to %d characters, as in crawler-1", strict.Clip(s), maxFleetHost)
	}
	return s
}

// perHost reads the exits whose lanes are not shared.
func (v value) perHost(exits []policy.Exit) []string {
	known := map[string]bool{policy.DirectExit: true}
	for i := range exits {
		known[exits[i].Identity()] = true
	}
	var names []string
	seen := map[string]bool{}
	v.list("[direct]", "leave it out if all hosts have the same exits", func(v value) {
		s, ok := v.text(policy.DirectExit)
		if !ok {
			return
		}
		if !known[s] && !v.r.exits.unnamed && !v.r.exits.names[s] {
			v.Reject("no exit is named %s; write direct, or an exit of this file", strict.Clip(s))
			return
		}
		if once(v, seen, s) {
			names = append(names, s)
		}
	})
	return names
}

// shared says with whom b is held together: its own keys fleet and on_loss, or
// what the file says.
func (v value) shared(b *policy.Budget, alone bool, loss *fleet.Loss) {
	for _, key := range []string{"fleet", "on_loss"} {
		if at, has := v.at(key); has && v.r.fleet == nil && !v.r.noFleet {
			at.Reject("the file has no fleet; remove it, or write fleet: {redis: …} at the top")
		}
	}
	if alone && loss != nil {
		if at, has := v.at("on_loss"); has {
			at.Reject("is for budgets that hosts share; remove it, or fleet: false")
		}
	}
	if v.r.fleet == nil || alone {
		return
	}
	b.Fleet = v.r.fleet
	if loss != nil && *loss != b.Fleet.Loss {
		own := *b.Fleet
		own.Loss = *loss
		b.Fleet = &own
	}
}

// describeFleet says with whom budgets are held together; "" for nobody.
func describeFleet(f *policy.Fleet) string {
	if f == nil {
		return ""
	}
	s := "fleet: budgets are held together with all hosts at " + f.Redis.String()
	if len(f.PerHost) > 0 {
		s += ", but for the exit"
		if len(f.PerHost) > 1 {
			s += "s"
		}
		s += " " + strict.Series(f.PerHost, "and")
	}
	return s
}

// describeShared is how b is held together with other hosts.
func describeShared(b *policy.Budget, f *policy.Fleet) string {
	switch {
	case f == nil || b.Mode != policy.Enforce:
		return ""
	case b.Fleet == nil:
		return "; on each host of the fleet"
	}
	l := b.FleetLimit()
	s := "; by all hosts together (" + fleet.SchemeOf(l).String()
	hosts := max(b.Fleet.Hosts, 1)
	if bound := fleet.Bound(l, fleet.SchemeOf(l), hosts, fleet.Term); bound > 0 {
		s += fmt.Sprintf(", at most %s more with %d host", strconv.FormatFloat(bound, 'f', -1, 64), hosts)
		if hosts != 1 {
			s += "s"
		}
	}
	if s += "), "; b.Concurrency > 0 {
		s += strconv.Itoa(b.Concurrency) + " at once on each, "
	}
	s += map[fleet.Loss]string{
		fleet.LossShare: "their shares", fleet.LossClosed: "nothing", fleet.LossOpen: "WARNING: on each host all of it",
	}[b.Fleet.Loss] + " without the store"
	if b.Fleet.Loss == fleet.LossShare && b.Fleet.Hosts == 0 {
		s += " once it told how many they are (hosts: N says so before)"
	}
	return s
}
