// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crowdOf starts a process that sends to a path of the origin at port by count
// connections at a time.
func crowdOf(t testing.TB, scope *group, port int, path string, span time.Duration, count int) *process {
	t.Helper()
	return start(t, how{in: scope, env: []string{roleName + "=" + roleCrowd}},
		here.self, fmt.Sprintf("http://localhost:%d%s", port, path), span.String(), strconv.Itoa(count))
}

// TestWindow floods a budget that is a window alone.
func TestWindow(t *testing.T) {
	const (
		limit = 5
		per   = 2 * time.Second
		span  = 7 * time.Second
	)
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, window: {limit: %d, per: %v}}", o.port, limit, per))
	log := d.follow(t)
	var all []*process
	for range 4 {
		all = append(all, crowdOf(t, scope, o.port, "/", span, 2))
	}
	for _, p := range all {
		p.mustSucceed(t, 3*span)
	}
	waitFor(t, 10*time.Second, "an event for each dispatch", func() bool {
		return len(dispatches(t, log)) >= o.count()
	})
	at := dispatches(t, log)
	for i := limit; i < len(at); i++ {
		if apart := time.Duration(at[i] - at[i-limit]); apart < per {
			t.Errorf("dispatches %d to %d lie within %v, want at most %d in any %v", i-limit, i, apart, limit, per)
		}
	}
	if least := limit * int(span/per); len(at) < least {
		t.Errorf("got %d requests in %v, want at least %d: the window is not used", len(at), span, least)
	}
}

// TestConcurrency floods an origin that takes its time.
func TestConcurrency(t *testing.T) {
	const most = 3
	scope := newGroup(t)
	var now, highest, served atomic.Int64
	port := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		for top := highest.Load(); n > top && !highest.CompareAndSwap(top, n); top = highest.Load() {
		}
		time.Sleep(50 * time.Millisecond)
		now.Add(-1)
		served.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, concurrency: %d}", port, most))
	const span = 4 * time.Second
	var all []*process
	for range 4 {
		all = append(all, crowdOf(t, scope, port, "/", span, 5))
	}
	for _, p := range all {
		p.mustSucceed(t, 3*span)
	}
	if got := highest.Load(); got > most {
		t.Errorf("got %d requests at once, want at most %d", got, most)
	}
	// At 50 ms each, 3 at once make 60 a second; processes take time to start.
	if got := served.Load(); got < 60 {
		t.Errorf("got %d requests served, want at least 60: the places are not used", got)
	}
}

// TestFairTurns has a process with fifty connections and one with a single
// connection compete for a budget that is too small for either.
func TestFairTurns(t *testing.T) {
	const span = 8 * time.Second
	share := func(t *testing.T, fairBy string) (few, many int) {
		scope := newGroup(t)
		var mu sync.Mutex
		counts := map[string]int{}
		port := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			counts[r.URL.Path]++
		}))
		newDaemon(t, scope, fmt.Sprintf(
			"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 20/s, queue: {fair_by: %s}}", port, fairBy))
		crowd := crowdOf(t, scope, port, "/many", span, 50)
		one := crowdOf(t, scope, port, "/few", span, 1)
		crowd.mustSucceed(t, 3*span)
		one.mustSucceed(t, 3*span)
		mu.Lock()
		defer mu.Unlock()
		return counts["/few"], counts["/many"]
	}
	// A client with one connection asks again only when it was answered, so it
	// misses the turn right after; what it gets is a half less what that costs.
	few, many := share(t, "process")
	if few*4 < many {
		t.Errorf("turns by process: one connection got %d and fifty got %d, want nearly as many", few, many)
	}
	first, rest := share(t, "none")
	if first*8 > rest {
		t.Errorf("first come, first served: one connection got %d and fifty got %d: this shows nothing", first, rest)
	}
	t.Logf("by process %d and %d, in order of arrival %d and %d", few, many, first, rest)
}

// TestQuota floods an origin that tells how much is left, under a policy that
// would allow far more.
func TestQuota(t *testing.T) {
	const (
		limit = 10
		per   = 2 * time.Second
		span  = 7 * time.Second
	)
	scope := newGroup(t)
	var mu sync.Mutex
	var began time.Time
	var used, total, limited int
	port := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(began) >= per {
			began, used = now, 0
		}
		total++
		used++
		reset := strconv.FormatFloat((per - time.Since(began)).Seconds(), 'f', 3, 64)
		w.Header().Set("X-RateLimit-Limit", strconv.Itoa(limit))
		w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(max(0, limit-used)))
		w.Header().Set("X-RateLimit-Reset", reset)
		if used > limit {
			limited++
			w.Header().Set("Retry-After", reset)
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 200/s}", port))
	var all []*process
	for range 4 {
		all = append(all, crowdOf(t, scope, port, "/", span, 4))
	}
	for _, p := range all {
		p.mustSucceed(t, 3*span)
	}
	mu.Lock()
	defer mu.Unlock()
	if limited > 0 {
		t.Errorf("got %d of %d requests limited, want none: the origin told what was left", limited, total)
	}
	if least := limit * int(span/per) / 2; total < least {
		t.Errorf("got %d requests in %v, want at least %d", total, span, least)
	}
	t.Logf("%d requests in %v, where %d in %v are allowed", total, span, limit, per)
}

// TestLongCooldown has an origin close a lane for hours.
func TestLongCooldown(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 10/s}", o.port))
	curl := func() string {
		p := start(t, how{in: scope}, "curl", "-si", fmt.Sprintf("http://localhost:%d/", o.port))
		p.mustSucceed(t, 20*time.Second)
		return p.stdout.String()
	}
	o.limitNext(20000 * time.Second)
	if got := curl(); !strings.HasPrefix(got, "HTTP/1.1 429") || strings.Contains(got, "Proxy-Status") {
		t.Fatalf("the origin's own answer: got %q", got)
	}
	begin := time.Now()
	got := curl()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("refused after %v, want at once", took)
	}
	wait := 0
	for line := range strings.Lines(got) {
		if rest, ok := strings.CutPrefix(line, "Retry-After: "); ok {
			wait, _ = strconv.Atoi(strings.TrimSpace(rest))
		}
	}
	// A tenth more, at most, by the spread.
	if !strings.HasPrefix(got, "HTTP/1.1 429") || !strings.Contains(got, "max_wait") || wait < 19_900 || wait > 22_000 {
		t.Errorf("while the lane is closed: got %q, want a refusal with the true wait", got)
	}
	if n := o.count(); n != 1 {
		t.Errorf("got %d requests at the origin, want 1", n)
	}
	p := start(t, how{}, here.bin, "lanes", "--socket", d.socket)
	p.mustSucceed(t, 10*time.Second)
	if text := p.stdout.String(); !strings.Contains(text, "closed for ") || !strings.Contains(text, "limited, 5h33m20s as asked") {
		t.Errorf("egressd lanes says %q, want why it is closed and until when", text)
	}
}

// TestAbsorbedRetries has egressd repeat what an origin refused.
func TestAbsorbedRetries(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	var mu sync.Mutex
	var received []time.Time
	fail := 0
	port := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		received = append(received, time.Now())
		if fail > 0 {
			fail--
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprintln(w, "not now")
			return
		}
		fmt.Fprintln(w, "hello", r.Method)
	}))
	newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 50/s, burst: 5, retry: {absorb: true, attempts: 3}}", port))
	send := func(fails int, args ...string) (answer string, times []time.Time) {
		mu.Lock()
		received, fail = nil, fails
		mu.Unlock()
		p := start(t, how{in: scope}, append([]string{"curl", "-s", "-w", "%{http_code}", fmt.Sprintf("http://localhost:%d/", port)}, args...)...)
		p.mustSucceed(t, 30*time.Second)
		mu.Lock()
		defer mu.Unlock()
		return p.stdout.String(), received
	}
	got, times := send(1)
	if got != "hello GET\n200" || len(times) != 2 {
		t.Errorf("after one 429: got %q after %d attempts, want the answer to the second", got, len(times))
	}
	if len(times) == 2 && times[1].Sub(times[0]) < 950*time.Millisecond {
		t.Errorf("the second attempt came after %v, though the origin asked for 1 s", times[1].Sub(times[0]))
	}
	if got, times = send(1, "-X", "PUT", "-d", "body"); got != "hello PUT\n200" || len(times) != 2 {
		t.Errorf("PUT: got %q after %d attempts, want the answer to the second", got, len(times))
	}
	if got, times = send(1, "-d", "body"); got != "not now\n429" || len(times) != 1 {
		t.Errorf("POST: got %q after %d attempts, want the origin's 429 after one", got, len(times))
	}
	if got, times = send(9); got != "not now\n429" || len(times) > 3 || len(times) < 2 {
		t.Errorf("an origin that goes on refusing: got %q after %d attempts, want its last 429 after at most three", got, len(times))
	}
}
