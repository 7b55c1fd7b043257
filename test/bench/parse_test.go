// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const wrkReport = `Running 3s test @ http://127.0.0.1:19080/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.12ms  668.24us   4.76ms   61.34%
    Req/Sec    10.98k   595.82    12.18k    70.00%
  Latency Distribution
     50%  982.00us
     75%    1.62ms
     90%    1.99ms
     99%    1.01s
  32805 requests in 3.00s, 4.88MB read
Requests/sec:  10922.40
Transfer/sec:      1.62MB
`

func TestParseWrk(t *testing.T) {
	got, requests, err := parseWrk([]byte(wrkReport))
	if err != nil {
		t.Fatal(err)
	}
	want := load{perSecond: 10922.4, p50: 982 * time.Microsecond, p99: 1010 * time.Millisecond}
	if got != want || requests != 32805 {
		t.Errorf("got %+v, %d requests; want %+v, 32805", got, requests, want)
	}

	withErrors := strings.Replace(wrkReport, "Requests/sec", "  Socket errors: connect 1, read 2, write 3, timeout 4\nRequests/sec", 1)
	if got, _, err = parseWrk([]byte(withErrors)); err != nil || got.errors != 10 {
		t.Errorf("socket errors: got %d, %v; want 10", got.errors, err)
	}
}

func TestParseWrkRefuses(t *testing.T) {
	for name, report := range map[string]string{
		"refused requests": wrkReport + "  Non-2xx or 3xx responses: 7\n",
		"no rate":          strings.Replace(wrkReport, "Requests/sec:", "", 1),
		"no count":         strings.Replace(wrkReport, "requests in", "", 1),
		"no request":       strings.Replace(wrkReport, "32805 requests", "0 requests", 1),
		"no latency":       strings.Replace(wrkReport, "99%    1.01s", "", 1),
	} {
		if _, _, err := parseWrk([]byte(report)); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	const line = "77 (a) b (c) S 12 77 77 0 -1 4194304 100 0 0 0 150 50 9 9 20 0 1 0 1000 0 0"
	got, err := parseStat(line)
	if err != nil {
		t.Fatal(err)
	}
	if want := (stat{pid: 77, parent: 12, cpu: 2 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "77 S 12", "77 (a) S 12", "x (a) S 12 77 77 0 -1 4194304 100 0 0 0 150 50 9"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

func TestTreeCPU(t *testing.T) {
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		_ = strings.Repeat("burn", 1000)
	}
	got, err := treeCPU(os.Getpid())
	if err != nil || got <= 0 {
		t.Errorf("own CPU time: got %s, %v; want more than 0", got, err)
	}
	if got, err := treeCPU(1 << 30); err == nil {
		t.Errorf("CPU time of no process: got %s, want an error", got)
	}
}

func TestSumSeries(t *testing.T) {
	const text = `# TYPE egressd_requests_total counter
egressd_requests_total{destination="a",code="200"} 10
egressd_requests_total{destination="b c",code="200"} 2e+06
egressd_requests_total_other 7
other 1
`
	for label, want := range map[string]int{"": 2000010, `destination="a"`: 10, `code="429"`: 0} {
		if got, err := sumSeries(text, "egressd_requests_total", label); err != nil || got != want {
			t.Errorf("with %q: got %d, %v; want %d", label, got, err, want)
		}
	}
	if got, err := sumSeries("m x\n", "m", ""); err == nil {
		t.Errorf("a value that is no number: got %d, want an error", got)
	}
}

func TestParseDownload(t *testing.T) {
	size, seconds, err := parseDownload("1000 0.5 2.5")
	if err != nil || size != 1000 || seconds != 2 {
		t.Errorf("got %d, %v, %v; want 1000, 2", size, seconds, err)
	}
	for _, bad := range []string{"", "1 2", "x 1 2", "1 x 2", "1 2 x", "1 2 2"} {
		if _, _, err := parseDownload(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestParseMicro(t *testing.T) {
	got, err := parseMicro([]byte(`goos: linux
pkg: github.com/egressd/egressd/policy/ledger
BenchmarkAcquire-2   	 1000	 30.0 ns/op	 0 B/op	 0 allocs/op
BenchmarkAcquire-2   	 1000	 34.0 ns/op	 0 B/op	 0 allocs/op
PASS
pkg: github.com/egressd/egressd/loader
BenchmarkConnect/named-2 	 1000	 9000 ns/op	 5.0 extra/op	 16 B/op	 1 allocs/op
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []micro{
		{pkg: "policy/ledger", name: "Acquire", ns: 32},
		{pkg: "loader", name: "Connect/named", ns: 9000, bytes: 16, allocs: 1, others: []string{"5 extra/op"}, units: map[string]float64{"extra/op": 5}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseMicro([]byte("PASS\n")); err == nil {
		t.Error("no benchmark: got no error")
	}
}

func TestParts(t *testing.T) {
	var p parts
	if !p.has("load") || !p.has("micro") {
		t.Error("nothing chosen: want all parts")
	}
	if err := p.Set("hooks,connect"); err != nil || !p.has("hooks") || !p.has("connect") || p.has("load") || p.String() != "hooks,connect" {
		t.Errorf("got %v, %v; want hooks and connect", p, err)
	}
	if err := p.Set("hooks,hoks"); err == nil {
		t.Error("a part that is none: got no error")
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(tc.in); got != tc.want {
			t.Errorf("median(%v): got %v, want %v", tc.in, got, tc.want)
		}
	}
}

func TestReplaceMeasured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "B.md")
	for _, step := range []struct{ text, want string }{
		{"one\n", "# Benchmarks\n\n" + measuredBegin + "\none\n\n" + measuredEnd},
		{"two\n", "# Benchmarks\n\n" + measuredBegin + "\ntwo\n\n" + measuredEnd},
	} {
		if err := replaceMeasured(file, []byte(step.text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != step.want {
			t.Errorf("got %q, %v; want %q", got, err, step.want)
		}
	}

	const own = "mine\n" + measuredBegin + "old" + measuredEnd + "tail\n"
	if err := os.WriteFile(file, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceMeasured(file, []byte("new\n")); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if want := "mine\n" + measuredBegin + "\nnew\n\n" + measuredEnd + "tail\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}

	if err := os.WriteFile(file, []byte("no marks\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceMeasured(file, []byte("new\n")); err == nil {
		t.Error("a document without marks: got no error")
	}
}

func TestReport(t *testing.T) {
	r := report{
		date:    time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		machine: machine{cores: 2, cpu: "CPU", kernel: "6.1", system: "Debian", versions: []string{"nginx 1.22"}},
		rounds:  2,
		slot:    5 * time.Second,
		loads: []loadResult{{
			scenario: scenario{title: "Title", about: "About."},
			names:    []string{"origin directly", nameNginx, nameHAProxy},
			slots: [][]load{
				{{perSecond: 300, p50: 1000, p99: 2000}, {perSecond: 500, p50: 3000, p99: 4000}},
				{{perSecond: 200, p50: 5000, p99: 6000, cpu: 7000}, {perSecond: 200, p50: 5000, p99: 6000, cpu: 7000}},
				{{perSecond: 100, p50: 8000, p99: 9000, cpu: 1500, errors: 3}, {perSecond: 100, p50: 8000, p99: 9000, cpu: 1500}},
			},
		}},
		paced: []pacedRow{
			{scenario: "kept", name: "directly", perSecond: []float64{100, 110, 90, 105}, direct: []float64{100, 110, 90, 105}},
			{scenario: "kept", name: "granted", perSecond: []float64{97, 110, 88.2, 105}, direct: []float64{100, 110, 90, 105}},
		},
		connect: []connectRow{
			{"native", []time.Duration{10000, 20000, 12000}, []time.Duration{10000, 20000, 12000}},
			{"in scope, not named", []time.Duration{10100, 21000, 12240}, []time.Duration{10000, 20000, 12000}},
		},
		bulk: bulkResult{mib: 10, names: []string{"origin directly", nameHAProxy}, runs: [][]bulk{{{gbPerSecond: 2}}, {{gbPerSecond: 1, cpu: 30 * time.Millisecond}}}},
		fleet: []micro{
			{name: "Fleet/100_per_s/egressd", units: map[string]float64{unitTrips: 1.2, unitP50: -0.02, unitP99: 4}},
			{name: "Fleet/100_per_s/redis_rate", units: map[string]float64{unitTrips: 1, unitP50: 1.234, unitP99: 5.678}},
			{name: "Fleet/5000_per_s/egressd", units: map[string]float64{unitTrips: 0.02, unitP50: 0.5, unitP99: 3}},
			{name: "Fleet/5000_per_s/redis_rate", units: map[string]float64{unitTrips: 1, unitP50: 0.75, unitP99: 3}},
			{name: "Fleet/5000_per_s/token-bucket-script", units: map[string]float64{unitTrips: 1.1, unitP50: 0.75, unitP99: 3}},
		},
		micro: []micro{
			{pkg: "policy/ledger", name: "Acquire/granted", ns: 25, others: []string{"1 a", "2 b"}},
			{pkg: "policy/ledger", name: "TimeRate/granted", ns: 100, bytes: 8, allocs: 1},
		},
		hooks: hooks{
			costs: []micro{
				{pkg: "loader", name: "Connect/v4/native", ns: 20000},
				{pkg: "loader", name: "Connect/v4/empty", ns: 20000, units: map[string]float64{"ns/connect4": 45.2}},
				{pkg: "loader", name: "Connect/v4/unnamed", ns: 20000, units: map[string]float64{"ns/connect4": 149.6, "ns/sock_release": 300}},
				{pkg: "loader", name: "Connect/v6/unnamed", ns: 20000, units: map[string]float64{"ns/connect6": 151}},
				{pkg: "loader", name: "Connect/v4/named", ns: 20000, units: map[string]float64{"ns/connect4": 2000}},
				{pkg: "loader", name: "SYN/other", ns: 20000, units: map[string]float64{"ns/egressd_pace": 40}},
				{pkg: "loader", name: "SYN/held", ns: 20000, units: map[string]float64{"ns/egressd_pace": 100, "ns/connect4": 7}},
			},
			left: new(float64),
		},
	}
	var got strings.Builder
	r.write(&got)
	want, err := os.ReadFile("testdata/report.md")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}
