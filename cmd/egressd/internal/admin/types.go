// SPDX-License-Identifier: Apache-2.0

// Package admin is the daemon's control socket: HTTP with JSON bodies over a
// unix socket, for the commands that ask a running daemon. Only root and the
// daemon's own user are heard, by the credentials that the kernel vouches for.
//
//	GET  /v1/status
//	GET  /v1/lanes
//	GET  /v1/flows
//	GET  /v1/exits?since=1h
//	GET  /v1/counts
//	GET  /v1/explain?url=…&method=…&exit=…
//	GET  /v1/events?follow&dispatches   one JSON object per line
//	POST /v1/cooldown                   {"lane": "…", "duration": "30s"} or {"lane": "…", "clear": true}
//
// Errors are {"error": "…"}.
package admin

import (
	"context"
	"time"
)

// Backend is what the socket shows. Its methods are called from several
// goroutines at once.
type Backend interface {
	Status() Status
	Lanes() []Lane
	Flows() []Flow
	// Exits tells of all exits. Counts are of the time of length since before
	// now, or since the daemon started if that is zero.
	Exits(since time.Duration) Exits
	// Counts tells what else was counted.
	Counts() Counts
	// Explain tells what would become of a request. It makes no lane and takes
	// nothing.
	Explain(ctx context.Context, q Question) (Explanation, error)
	// Events calls f for what has happened and, if follow is set, for what
	// happens until ctx ends. Dispatches are left out unless asked for. It
	// ends with the first error of f.
	Events(ctx context.Context, follow, dispatches bool, f func(Event) error) error
	// Cooldown closes a lane for d from now, or opens it if d is zero.
	Cooldown(lane string, d time.Duration) error
}

// Status is how the daemon fares.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Config  Config    `json:"config"`
	Kernel  *Kernel   `json:"kernel,omitempty"` // absent where no programs are loaded
	Lanes   int       `json:"lanes"`
	Waiting int64     `json:"waiting"` // requests in all gates
	Flows   int       `json:"flows"`
	Exits   Using     `json:"exits"`
	Fleet   *Member   `json:"fleet,omitempty"`   // absent where the host is for itself
	Metrics string    `json:"metrics,omitempty"` // address
	// MetricsTLS says that the metrics are there by https.
	MetricsTLS bool `json:"metrics_tls,omitempty"`
}

// Member is this host's membership in a fleet.
type Member struct {
	Store string         `json:"store"` // its address
	Host  string         `json:"host"`  // this one's name there
	Lanes map[string]int `json:"lanes"` // shared ones, by where their requests come from: see Fleet.Mode
}

// Config is the policy in force.
type Config struct {
	File    string    `json:"file,omitempty"`
	Loaded  time.Time `json:"loaded"`
	OK      bool      `json:"ok"`              // of the last reading
	Error   string    `json:"error,omitempty"` // of the last reading: the policy before it is in force
	Budgets []string  `json:"budgets"`         // what they really allow
}

// Kernel is the state of the programs.
type Kernel struct {
	Cgroups   []string          `json:"cgroups"` // where they are attached
	Attached  bool              `json:"attached"`
	Canary    Canary            `json:"canary"`
	Untouched map[string]uint64 `json:"untouched"` // by the safety gate that did not hold
}

// Canary is the last self-test: a connection through the hook.
type Canary struct {
	At    time.Time `json:"at"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
}

// Lane is one lane.
type Lane struct {
	Lane        string  `json:"lane"` // id
	Budget      string  `json:"budget"`
	Destination string  `json:"destination"`
	Exit        string  `json:"exit"`
	Session     string  `json:"session,omitempty"`
	Path        string  `json:"path,omitempty"`
	Label       string  `json:"label"` // of the destination, as counts write it
	Mode        string  `json:"mode"`
	Rate        float64 `json:"rate"`           // requests per second now; 0: any number
	BaseRate    float64 `json:"base_rate"`      // requests per second that the budget allows
	Auto        bool    `json:"auto,omitempty"` // … which is learned from the origin
	Burst       float64 `json:"burst"`
	Waiting     int64   `json:"waiting"`
	InFlight    int64   `json:"in_flight"`
	Concurrency int     `json:"concurrency,omitempty"` // that may be in flight
	Window      *Usage  `json:"window,omitempty"`      // of the budget's window
	Quota       *Usage  `json:"quota,omitempty"`       // of what the origin's answers tell
	Fleet       *Fleet  `json:"fleet,omitempty"`       // with which it is held together; nil: it is this host's alone
	Sent        uint64  `json:"sent"`                  // requests let through, also those that only a measuring budget would have held
	Granted     uint64  `json:"granted"`
	Held        uint64  `json:"held"`
	Refused     uint64  `json:"refused"`
	Limited     uint64  `json:"limited"`
	Open        bool    `json:"open"`
	Probing     bool    `json:"probing,omitempty"` // open for one probe only
	// ClosedFor is the time until a closed lane opens, in seconds, and OpensAt
	// the same as an instant; Reason is why it is closed.
	ClosedFor float64    `json:"closed_for_s,omitempty"`
	OpensAt   *time.Time `json:"opens_at,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	// Stalled is how long the lane has had no success, in seconds, where that
	// is long enough to look after it.
	Stalled float64 `json:"stalled_s,omitempty"`
}

// Fleet is a lane's part in a fleet.
type Fleet struct {
	Scheme string   `json:"scheme"`          // how the hosts come by units: slots, leases, unbounded
	Mode   string   `json:"mode"`            // where they come from now: fleet, share, closed, open, returning
	Hosts  int      `json:"hosts,omitempty"` // that it reckons with
	Held   uint64   `json:"held"`            // units of the store that this host has
	Bound  *float64 `json:"bound,omitempty"` // requests that all hosts may send beyond the limit; nil: any number
}

// Usage is how far a number of units is used up.
type Usage struct {
	Limit uint64  `json:"limit,omitempty"`
	Left  uint64  `json:"left"`
	Until float64 `json:"until_s"` // until there is more
}

// Flow is one connection in the hands of the proxy.
type Flow struct {
	Cookie   uint64  `json:"cookie"` // of the client's socket: no two connections share it
	PID      uint32  `json:"pid"`
	Command  string  `json:"command"`
	UID      uint32  `json:"uid"`
	Netns    uint64  `json:"netns"`
	Cgroup   uint64  `json:"cgroup"`
	Dest     string  `json:"dest"`
	Source   string  `json:"source,omitempty"`
	Ifindex  uint32  `json:"ifindex,omitempty"`
	Mark     uint32  `json:"mark,omitempty"`
	Exit     string  `json:"exit"`
	Host     string  `json:"host,omitempty"`
	State    string  `json:"state"`
	Lane     string  `json:"lane,omitempty"`
	Requests int     `json:"requests"`
	Sight    string  `json:"sight,omitempty"` // how the inside of TLS is seen
	Age      float64 `json:"age_s"`
}

// Event is one thing that happened. Mono is CLOCK_MONOTONIC, for differences;
// Time is for people.
type Event struct {
	Time   time.Time `json:"time"`
	Mono   uint64    `json:"mono_ns"`
	Kind   string    `json:"kind"`
	Lane   string    `json:"lane,omitempty"`
	Wait   float64   `json:"wait_s,omitempty"`
	Detail string    `json:"detail,omitempty"`
	// Of single requests and answers: see policy.Event.
	PID  uint32  `json:"pid,omitempty"`
	Job  uint64  `json:"job,omitempty,string"`
	Told float64 `json:"told_per_second,omitempty"`
	// Of single kinds: see policy.Event.
	Extended   bool    `json:"extended,omitempty"`
	Rate       float64 `json:"rate_per_second,omitempty"`
	Count      uint64  `json:"count,omitempty"`
	Suppressed uint64  `json:"suppressed,omitempty"` // of the same kind and lane, before this one
}

// Cooldown is the body of POST /v1/cooldown.
type Cooldown struct {
	Lane     string `json:"lane"`
	Duration string `json:"duration,omitempty"`
	Clear    bool   `json:"clear,omitempty"`
}

// failure is the body of an answer that is none.
type failure struct {
	Error string `json:"error"`
}
