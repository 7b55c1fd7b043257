// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// startProbe starts a client in g that makes one connection to addr after the
// other for span.
func startProbe(t testing.TB, g *group, addr string, span, pause time.Duration) *process {
	t.Helper()
	return start(t, how{in: g, env: []string{roleName + "=" + roleProbe}}, here.self, addr, span.String(), pause.String())
}

// startRush starts a rush.
func startRush(t testing.TB, g *group, addr string, span, pause time.Duration) *process {
	t.Helper()
	return start(t, how{in: g, env: []string{roleName + "=" + roleRush}}, here.self, addr, span.String(), pause.String())
}

// attempts are what a probe has told so far.
func attempts(t testing.TB, p *process) (all []attempt) {
	t.Helper()
	text := p.stdout.String()
	for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) {
		var a attempt
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("probe: %v in %s", err, line)
		}
		all = append(all, a)
	}
	return all
}

// waitAttempts waits until the probe tells of a connection that began after
// the given time and is as ok wants it.
func waitAttempts(t testing.TB, p *process, after time.Time, what string, ok func(attempt) bool) {
	t.Helper()
	waitFor(t, 15*time.Second, what, func() bool {
		for _, a := range attempts(t, p) {
			if a.At > after.UnixNano() && ok(a) {
				return true
			}
		}
		if !p.running() {
			t.Fatalf("the probe has ended before %s\n%s", what, p.stderr.String())
		}
		return false
	})
}

func redirected(a attempt) bool { return a.Error == "" && a.Status == 200 && !a.Native }
func native(a attempt) bool     { return a.Error == "" && a.Status == 200 && a.Native }
