// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Defaults of the section tls.
const (
	DefaultKeyDir = "/run/egressd/keys"   // tls.key_dir
	DefaultCADir  = "/var/lib/egressd/ca" // tls.ca
)

// tlsWords are the values of tls.mode, each at the index of its constant.
var tlsWords = []string{
	policy.Passthrough: "passthrough",
	policy.Observe:     "observe",
	policy.Terminate:   "terminate",
}

// budgetTLS is what budgets take of the section tls that do not say.
type budgetTLS struct {
	mode    policy.TLSMode
	flights bool // tls.pace
}

// tls reads how TLS connections are treated that no budget says more of.
func (v value) tls(t *policy.TLS) {
	v.mapping(append(v.r.tls.fields(),
		field{"sources", func(v value) { v.sources(t) }},
		field{"key_dir", func(v value) { v.folder(&t.KeyDir, DefaultKeyDir) }},
		field{"ca", func(v value) { v.folder(&t.CADir, DefaultCADir) }},
		field{"roots", func(v value) {
			if s, ok := v.path("/etc/egressd/roots.pem", "file"); ok {
				t.Roots = s
			}
		}},
	)...)
	t.Mode = v.r.tls.mode
}

// tlsOfBudget reads the section tls of a budget, which holds the defaults.
func (v value) tlsOfBudget(b *policy.Budget) {
	t := budgetTLS{b.TLS, b.Flights}
	v.mapping(t.fields()...)
	b.TLS, b.Flights = t.mode, t.flights
}

// fields are the keys that the file and each of its budgets have.
func (t *budgetTLS) fields() []field {
	return []field{
		{"mode", func(v value) {
			if s, ok := v.word(tlsWords...); ok {
				t.mode = policy.TLSMode(slices.Index(tlsWords, s))
			}
		}},
		{"pace", func(v value) {
			if s, ok := v.word("flights", "connections"); ok {
				t.flights = s == "flights"
			}
		}},
	}
}

// sources reads where the mode observe may have its knowledge from.
func (v value) sources(t *policy.TLS) {
	t.KeyLog, t.Uprobes = false, false
	seen := map[string]bool{}
	v.list("[keylog, uprobes]", "leave it out for both", func(v value) {
		s, ok := v.word("keylog", "uprobes")
		if !ok || !once(v, seen, s) {
			return
		}
		t.KeyLog = t.KeyLog || s == "keylog"
		t.Uprobes = t.Uprobes || s == "uprobes"
	})
}

// folder reads the name of a folder into s.
func (v value) folder(s *string, example string) {
	name, ok := v.path(example, "folder")
	if !ok {
		return
	}
	// The name becomes part of environments, which systemd and Node split.
	if strings.ContainsAny(name, " \"'\\$%") {
		v.Reject("%q has a space, a quote, a backslash, $ or %%; choose another folder, as in %s", strict.Clip(name), example)
		return
	}
	*s = name
}

// path reads an absolute name of a file or a folder, the root excepted.
func (v value) path(example, what string) (string, bool) {
	s, ok := v.text(example)
	if !ok {
		return "", false
	}
	clean := path.Clean(s)
	if !path.IsAbs(s) || clean == "/" || what == "file" && strings.HasSuffix(s, "/") || strings.ContainsFunc(s, isControl) {
		v.Reject("%q is no absolute %s name; write it as in %s", strict.Clip(s), what, example)
		return "", false
	}
	return clean, true
}

func (v value) quic(q *policy.QUICMode) {
	if s, ok := v.word("allow", "refuse"); ok && s == "refuse" {
		*q = policy.QUICRefuse
	}
}

// describeTLS is how far connections under the budget are looked into, where
// that is further than their first bytes.
func describeTLS(b *policy.Budget, t *policy.TLS) string {
	switch b.TLS {
	case policy.Observe:
		switch {
		case !t.Uprobes:
			return "; HTTPS is observed by keys that its processes write"
		case !t.KeyLog:
			return "; HTTPS is observed by uprobes in its processes"
		}
		return "; HTTPS is observed by keys that its processes write, or by uprobes in them"
	case policy.Terminate:
		return "; TLS ends here: WARNING: clients get certificates of this host's own authority, and fail unless they trust it"
	}
	return ""
}
