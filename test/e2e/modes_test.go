// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestShadow(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 1/s, mode: shadow}", o.port))
	p := startProbe(t, scope, o.addr(), time.Minute, 0)
	waitFor(t, 20*time.Second, "a hundred answers", func() bool { return len(attempts(t, p)) >= 100 })
	// A limit of the origin closes nothing either.
	o.limitNext(time.Hour)
	waitAttempts(t, p, time.Time{}, "the 429", func(a attempt) bool { return a.Status == 429 })
	waitAttempts(t, p, time.Now(), "an answer after the 429", redirected)
	p.kill()
	all := attempts(t, p)
	for _, a := range all {
		if a.Error != "" || a.Native {
			t.Errorf("got %+v, want an answer by the proxy", a)
		}
	}
	l := d.lane(t)
	if l.Refused != 0 || !l.Open || l.Waiting != 0 {
		t.Errorf("got lane %+v, want it open, with nobody waiting or refused", l)
	}
	// What would have been held is counted: all but about one in a second.
	if least := len(all) / 2; l.Held < least {
		t.Errorf("got %d requests that would have been held, want at least %d of %d", l.Held, least, len(all))
	}
	if l.Limited != 1 {
		t.Errorf("got %d limits counted, want 1", l.Limited)
	}
}

// TestHonestErrors connects to a port that policy names and where nobody
// listens.
func TestHonestErrors(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	port := freePort(t)
	newDaemon(t, scope, plenty(port))
	p := startProbe(t, scope, hostPort("127.0.0.1", port), 300*time.Millisecond, 10*time.Millisecond)
	p.mustSucceed(t, 20*time.Second)
	all := attempts(t, p)
	if len(all) < 2 {
		t.Fatalf("got %d attempts, want at least 2", len(all))
	}
	// The first connect() has succeeded before anyone knew better.
	if a := all[0]; a.Where == "connect" && !strings.Contains(a.Error, "reset") || !strings.Contains(a.Error, "reset") && !strings.Contains(a.Error, "broken pipe") {
		t.Errorf("first: got %+v, want a reset", a)
	}
	for _, a := range all[1:] {
		if a.Where != "connect" || !strings.Contains(a.Error, "connection refused") {
			t.Errorf("later: got %+v, want ECONNREFUSED of connect()", a)
		}
	}
}
