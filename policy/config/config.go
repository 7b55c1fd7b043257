// SPDX-License-Identifier: Apache-2.0

// Package config turns the text of a policy file into a policy.Policy.
//
// It is strict: an unknown key, a key given twice, a value of the wrong type
// or out of range is an error with file and line, all errors of a file are
// reported at once, and a key of a feature that this version does not have is
// refused. A policy that was accepted does all that its text says.
//
// Defaults are filled in here and nowhere else: code that builds a
// policy.Budget by hand gets zero values, not these.
package config

import (
	"fmt"
	"os"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/verdict"
)

// Defaults of the policy file.
const (
	DefaultListen = "127.0.0.1:9477"            // metrics.listen
	DefaultSocket = "/run/egressd/egressd.sock" // admin.socket
)

// maxCooldown is the sanity maximum of everything that waits.
const maxCooldown = 24 * time.Hour

// Default returns the policy of a file that sets nothing: no budgets, every
// process in scope. The caller owns it.
func Default() *policy.Policy {
	return &policy.Policy{
		Scope:   policy.Scope{Cgroups: []string{"/"}},
		Metrics: policy.Metrics{Listen: DefaultListen},
		Events:  policy.Events{Log: policy.EventsAuto},
		Admin:   policy.Admin{Socket: DefaultSocket},
		TLS:     policy.TLS{KeyLog: true, Uprobes: true, KeyDir: DefaultKeyDir, CADir: DefaultCADir},
	}
}

// defaultBudget returns a budget with every default filled in, no name and
// nothing that limits it.
func defaultBudget() *policy.Budget {
	return &policy.Budget{
		Match:    policy.Match{Ports: []uint16{80, 443}},
		Per:      policy.PerDestination | policy.PerExit,
		Burst:    1,
		Cost:     policy.Cost{Units: 1},
		Queue:    policy.Queue{Max: 1000, MaxWait: 30 * time.Second},
		Cooldown: policy.Cooldown{Default: time.Second, Max: maxCooldown, Spread: 0.1, Statuses: []int{429}},
		Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
		Flights:  true,
		Retry:    policy.Retry{Attempts: 3, MaxBody: 1 << 20, Statuses: []int{503}},
	}
}

// Load reads and parses the policy file at path. An error is either that of
// reading or of type Errors.
func Load(path string) (*policy.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(path, text)
}

// Parse parses text as a policy file. name stands for the file in messages.
// An error is of type Errors; with one there is no policy.
func Parse(name string, text []byte) (*policy.Policy, error) {
	r := &reader{
		Reader:   strict.Reader{File: name, Noun: "policy", Key: "rate: 1/s", Unknown: suggest},
		dialects: map[string]*verdict.Dialect{},
		exits:    exitNames{names: map[string]bool{}, users: map[string]value{}},
		tls:      budgetTLS{flights: true},
	}
	p := Default()
	if root, ok := r.document(text); ok {
		root.policy(p)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}
