// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// parseMetrics reads the text format. Keys are series as written there.
func parseMetrics(t testing.TB, text string) map[string]float64 {
	t.Helper()
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("metrics: %v in %q", err, line)
		}
		series[line[:i]] = v
	}
	return series
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	const rate = 50
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [localhost], ports: [%d]}, rate: %d/s, burst: 5, queue: {max: 2}}", o.port, rate))
	addr := fmt.Sprintf("localhost:%d", o.port)
	var all []*process
	for range 6 { // twice as many as may be under way and wait
		all = append(all, startProbe(t, scope, addr, 3*time.Second, 0))
	}
	waitAttempts(t, all[0], time.Time{}, "an answer", redirected)
	during := parseMetrics(t, d.metrics(t))
	for _, p := range all {
		p.mustSucceed(t, 30*time.Second)
	}
	// One limit at the end: its cooldown is seen, and slows the lane.
	o.limitNext(20 * time.Second)
	last := startProbe(t, scope, addr, time.Millisecond, 0)
	last.mustSucceed(t, 10*time.Second)
	answered, refused, connections := 0, 0, 0
	for _, p := range append(all, last) {
		for _, a := range attempts(t, p) {
			connections++
			switch {
			// Among thousands, one upstream port may equal the client's and look
			// native; the kernel's own counts below tell.
			case a.Error != "" || a.Status != 200 && a.Status != 429:
				t.Errorf("got %+v, want an answer by the proxy", a)
			case a.Status == 200:
				answered++
			case p != last:
				refused++
			}
		}
	}
	waitFor(t, 10*time.Second, "the last flow to end", func() bool { return d.status(t).Flows == 0 })
	// The seconds of an exit are counted when they are over.
	const inSeconds = `egressd_exit_requests_per_second_sum{exit="direct"}`
	waitFor(t, 10*time.Second, "the last second to be counted", func() bool {
		return parseMetrics(t, d.metrics(t))[inSeconds] >= float64(o.count())
	})
	text := d.metrics(t)
	got := parseMetrics(t, text)
	const labels = `destination="localhost",exit="direct"`
	series := func(name, more string) string {
		// The text format has labels in the order of their names.
		parts := strings.Split(labels, ",")
		if more != "" {
			parts = append(parts, more)
			slices.Sort(parts)
		}
		return name + "{" + strings.Join(parts, ",") + "}"
	}
	equal := func(name string, want float64) {
		t.Helper()
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: got %v (there: %v), want %v", name, v, ok, want)
		}
	}
	between := func(name string, low, high float64) {
		t.Helper()
		if v, ok := got[name]; !ok || v < low || v > high {
			t.Errorf("%s: got %v (there: %v), want from %v to %v", name, v, ok, low, high)
		}
	}
	sent := float64(o.count())
	equal(series("egressd_requests_total", `code="200"`), float64(answered))
	equal(series("egressd_requests_total", `code="200"`), sent-1)
	equal(series("egressd_requests_total", `code="429"`), 1)
	equal(series("egressd_requests_total", `code="none"`), 0)
	equal(series("egressd_requests_refused_total", `reason="queue_full"`), float64(refused))
	equal(series("egressd_requests_refused_total", `reason="max_wait"`), 0)
	equal(series("egressd_request_wait_seconds_count", ""), sent)
	between(series("egressd_request_wait_seconds_sum", ""), 0.001, 3*6)
	equal(series("egressd_requests_waiting", ""), 0)
	equal(series("egressd_limited_total", `kind="limited"`), 1)
	between(series("egressd_cooldown_seconds", ""), 15, 22)
	equal(series("egressd_lane_rate", ""), rate/2)
	equal(series("egressd_lane_budget", ""), rate)
	between(series("egressd_bytes_total", `direction="sent"`), sent*20, sent*1000)
	// Without egressd's own answers, of which there are many more.
	between(series("egressd_bytes_total", `direction="received"`), sent*20, sent*1000)
	equal(inSeconds, sent)
	between(`egressd_exit_requests_per_second_count{exit="direct"}`, 3, 60)
	equal("egressd_config_last_reload_successful", 1)
	between("egressd_config_last_reload_success_timestamp_seconds", float64(time.Now().Add(-time.Minute).Unix()), float64(time.Now().Unix()))
	equal("egressd_dropped_keys_total", 0)
	equal("egressd_collect_errors_total", 0)
	// Connections count for the name from when the proxy has told it.
	redirected := 0.0
	for name, v := range got {
		if strings.HasPrefix(name, "egressd_connections_total{") && strings.Contains(name, `outcome="redirected"`) {
			redirected += v
		}
	}
	if redirected != float64(connections) {
		t.Errorf("egressd_connections_total of outcome redirected: got %v, want %d", redirected, connections)
	}
	if during[series("egressd_requests_total", `code="200"`)] == 0 {
		t.Error("during the load: got no egressd_requests_total")
	}
	families := map[string]bool{}
	for name := range got {
		name, _, _ = strings.Cut(name, "{")
		families[name] = true
	}
	for _, name := range []string{"egressd_untouched_total", "egressd_program_seconds_total", "egressd_build_info"} {
		if !families[name] {
			t.Errorf("got no %s, only %v", name, slices.Sorted(maps.Keys(families)))
		}
	}
	for name := range got {
		if strings.Contains(name, "127.0.0.1") || strings.Contains(name, fmt.Sprint(o.port)) {
			t.Errorf("got series %s, want no address in a label", name)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		start(t, how{stdin: text}, promtool, "check", "metrics").mustSucceed(t, 20*time.Second)
	}
	if t.Failed() {
		t.Log(text)
	}
}
