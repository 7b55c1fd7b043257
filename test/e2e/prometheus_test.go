// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// prometheus is a real one that scrapes a daemon of the test, twice a second.
type prometheus struct {
	*process
	base string
}

// startPrometheus starts a server with the rules that are shipped, and waits
// until it has scraped addr.
func startPrometheus(t testing.TB, addr string, flags ...string) *prometheus {
	t.Helper()
	return startScraping(t, fmt.Sprintf("{job_name: egressd, static_configs: [{targets: [%q]}]}", addr), `up == 1`, flags...)
}

// startScraping is startPrometheus with jobs to scrape, and waits until a query
// has an answer.
func startScraping(t testing.TB, jobs, until string, flags ...string) *prometheus {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Fatalf("%v: scripts/install-deps.sh test installs it", err)
	}
	rules, err := filepath.Abs("../../metrics/rules/egressd.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	mustWrite(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs: [%s]
`, rules, jobs))
	// It cannot be asked which port it took, so it is told one.
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listen := ln.Addr().String()
	ln.Close()
	p := &prometheus{base: "http://" + listen}
	p.process = start(t, how{}, append([]string{
		"prometheus", "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", listen, "--log.level", "warn",
	}, flags...)...)
	waitFor(t, 20*time.Second, "prometheus to scrape", func() bool {
		if !p.running() {
			t.Fatalf("prometheus has ended\n%s", p.stderr.String())
		}
		resp, err := http.Get(p.base + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK && len(p.query(t, until)) > 0
	})
	return p
}

// get asks the API and reads the field data of what it answers.
func (p *prometheus) get(t testing.TB, path string, query url.Values, data any) {
	t.Helper()
	resp, err := http.Get(p.base + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatalf("prometheus: %s: %v", path, err)
	}
	if answer.Status != "success" {
		t.Fatalf("prometheus: %s %s: %s", path, query.Get("query"), answer.Error)
	}
	if err := json.Unmarshal(answer.Data, data); err != nil {
		t.Fatalf("prometheus: %s: %v", path, err)
	}
}

// series is one of a result, with all its values in the order of time. The
// value of a native histogram is its count.
type series struct {
	labels map[string]string
	values []float64
}

// query evaluates at the present.
func (p *prometheus) query(t testing.TB, expr string) []series {
	t.Helper()
	return p.ask(t, "query", url.Values{"query": {expr}})
}

// queryRange evaluates at each second of span until now.
func (p *prometheus) queryRange(t testing.TB, expr string, span time.Duration) []series {
	t.Helper()
	now := time.Now()
	return p.ask(t, "query_range", url.Values{
		"query": {expr}, "step": {"1s"},
		"start": {strconv.FormatInt(now.Add(-span).Unix(), 10)}, "end": {strconv.FormatInt(now.Unix(), 10)},
	})
}

func (p *prometheus) ask(t testing.TB, path string, query url.Values) (all []series) {
	t.Helper()
	var data struct {
		ResultType string
		Result     []struct {
			Metric             map[string]string
			Value, Histogram   json.RawMessage
			Values, Histograms []json.RawMessage
		}
	}
	p.get(t, path, query, &data)
	for _, r := range data.Result {
		s := series{labels: r.Metric}
		for _, point := range append(r.Values, r.Value) {
			if point != nil {
				s.values = append(s.values, plain(t, point))
			}
		}
		for _, point := range append(r.Histograms, r.Histogram) {
			if point != nil {
				s.values = append(s.values, countOf(t, point))
			}
		}
		all = append(all, s)
	}
	return all
}

// plain is the value of a point: [time, "value"].
func plain(t testing.TB, point json.RawMessage) float64 {
	t.Helper()
	var text string
	if err := json.Unmarshal(point, &[]any{new(float64), &text}); err != nil {
		t.Fatalf("prometheus: %v in %s", err, point)
	}
	return mustFloat(t, text)
}

// countOf is the count of a native histogram: [time, {"count": "value"}].
func countOf(t testing.TB, point json.RawMessage) float64 {
	t.Helper()
	var h struct{ Count string }
	if err := json.Unmarshal(point, &[]any{new(float64), &h}); err != nil {
		t.Fatalf("prometheus: %v in %s", err, point)
	}
	return mustFloat(t, h.Count)
}

func mustFloat(t testing.TB, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// promRule is what tests want to know of a rule.
type promRule struct {
	Name, Query, Type, State, Health, LastError string
	Labels, Annotations                         map[string]string
}

// rules are all rules of the server, in the order of the file.
func (p *prometheus) rules(t testing.TB) (all []promRule) {
	t.Helper()
	var data struct{ Groups []struct{ Rules []promRule } }
	p.get(t, "rules", nil, &data)
	for _, g := range data.Groups {
		all = append(all, g.Rules...)
	}
	return all
}
