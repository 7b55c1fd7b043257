// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/egressd/egressd/policy"
)

var update = flag.Bool("update", false, "rewrite golden files")

// fake is a Source of fixed values.
type fake struct {
	lanes     []Lane
	tallies   Tallies
	kernel    Kernel
	kernelErr error
	reload    Reload
}

func (f *fake) Lanes() []Lane           { return f.lanes }
func (f *fake) Tallies() Tallies        { return f.tallies }
func (f *fake) Kernel() (Kernel, error) { return f.kernel, f.kernelErr }
func (f *fake) Reload() Reload          { return f.reload }

// full is a source in which every family has something to show, and two lanes
// share their labels.
func full() *fake {
	waits := policy.Histogram{Bounds: []float64{0.1, 1, 10}, Counts: []uint64{3, 2, 1, 1}, Sum: 21.5}
	return &fake{
		lanes: []Lane{
			{Destination: "store", Exit: "direct", Waiting: 2, Cooldown: 1500 * time.Millisecond, Rate: 0.5, Budget: 1, Fleet: &LaneFleet{Mode: "fleet", Hosts: 8, Bound: 1.2}},
			{Destination: "store", Exit: "direct", Waiting: 1, Cooldown: -time.Second, Rate: 1, Budget: 1},
			{Destination: "api.example", Exit: "wg0", Rate: 10, Budget: 10, Fleet: &LaneFleet{Mode: "open", Bound: math.Inf(1)}},
		},
		tallies: Tallies{
			TLS: TLS{
				Open:    []Count{{"keys", 3}, {"blind", 1}},
				Answers: []Count{{"keys", 40}, {"uprobe", 2}},
				Doubts:  []Count{{"no_keys", 5}},
				Unknown: 6, Shared: 7,
			},
			Pairs: []Tally{
				{
					Destination: "store", Exit: "direct",
					Requests: []Count{{"200", 7}, {"429", 1}},
					Refused:  []Count{{"max_wait", 3}, {"queue_full", 0}},
					Retried:  2,
					Limited:  []Count{{"limited", 1}, {"capacity", 0}},
					Wait:     waits, Sent: 1000, Received: 20000,
					Outcomes: []OutcomeBytes{{"useful", 800, 19000}, {"blocked", 300, 1100}},
				},
				{Destination: "store", Exit: "direct", Requests: []Count{{"200", 3}, {"none", 1}, {"1000", 2}}, Retried: 1, Wait: waits, Sent: 24,
					Outcomes: []OutcomeBytes{{"useful", 24, 0}}},
			},
			Exits: []ExitSeconds{
				{Exit: "direct", Seconds: policy.Histogram{Bounds: []float64{1, 2, 5}, Counts: []uint64{9, 0, 0, 0}, Sum: 9}},
				{Exit: "E-017", Lockstep: 0.75, HasLockstep: true, Seconds: policy.Histogram{
					Bounds: []float64{0, 1, 2}, Counts: []uint64{4, 2, 1, 1}, Sum: 9, Fine: map[int]int64{0: 2, 8: 1, 19: 1},
				}},
			},
			Prices: []ExitPrice{{"E-017", 4.2}, {"E-018", 0.5}},
			Switches: []ExitSwitches{
				{Pool: "residential", From: "E-017", To: "E-018", N: 4},
				{Pool: "residential", From: "E-018", To: "E-017", N: 1},
				{Pool: "residential", From: "E-017", To: "E-018", N: 2},
			},
			ExitMismatches: 6,
			EventsLost:     8,
			Fleet:          []FleetCalls{{Kind: "book", OK: 40, Failed: 2, Seconds: 0.25}, {Kind: "watch", OK: 7}},
		},
		kernel: Kernel{
			Connections: []Connections{
				{Destination: "store", Exit: "direct", Outcomes: []Count{{"redirected", 5}, {"untouched", 1}, {"held", 0}, {"refused", 0}}, Retransmits: 2, Handshakes: 1, HandshakeTime: 30 * time.Millisecond},
				{Destination: Other, Exit: "direct", Outcomes: []Count{{"redirected", 0}, {"untouched", 2}, {"held", 0}, {"refused", 0}}},
			},
			QUIC: []QUIC{
				{Destination: "store", Exit: "direct", Outcomes: []Count{{"untouched", 3}, {"refused", 0}}},
				{Destination: "store", Exit: "direct", Outcomes: []Count{{"untouched", 1}, {"refused", 2}}},
			},
			Untouched: []Count{{"heartbeat", 1}, {"listener", 0}},
			Programs:  []ProgramTime{{"connect4", 1500 * time.Microsecond}},
			Dropped:   4,
		},
		reload: Reload{OK: true, Last: time.Unix(1700000000, 0)},
	}
}

func TestScrapeGolden(t *testing.T) {
	c := NewCollector(Config{Source: full(), Build: Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26"}})
	golden := filepath.Join("testdata", "scrape.txt")
	if *update {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		if err := os.WriteFile(golden, []byte(gather(t, registry)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if err := testutil.CollectAndCompare(c, want); err != nil {
		t.Error(err)
	}
}

// gather is one scrape as text.
func gather(t testing.TB, g prometheus.Gatherer) string {
	t.Helper()
	rec := httptest.NewRecorder()
	handler := promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	handler.ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Errorf("scrape: got status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

func TestLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewCollector(Config{Source: full()}))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestEveryFamilyShown holds that a family is neither forgotten in Collect nor
// missing from the golden source.
func TestEveryFamilyShown(t *testing.T) {
	c := NewCollector(Config{Source: full()})
	for _, f := range families {
		if got := testutil.CollectAndCount(c, f.Name); got == 0 {
			t.Errorf("%s: got no series", f.Name)
		}
	}
}

func TestSeriesAreBounded(t *testing.T) {
	const limit, pairs = 10, 500
	src := &fake{}
	for i := range pairs {
		name := fmt.Sprintf("host-%d", i)
		src.tallies.Switches = append(src.tallies.Switches, ExitSwitches{Pool: "residential", From: name, To: "direct", N: 1})
		src.lanes = append(src.lanes, Lane{Destination: name, Exit: "direct", Waiting: 1})
		src.tallies.Pairs = append(src.tallies.Pairs, Tally{
			Destination: name, Exit: "direct", Requests: []Count{{"200", 1}},
		})
	}
	c := NewCollector(Config{Source: src, MaxPairs: limit})
	for range 2 { // the second scrape must show the same
		for _, tt := range []struct {
			family string
			want   int
		}{
			{NameWaiting, limit + 1},
			{NameRequests, limit + 1},
			{NameBytes, 2 * (limit + 1)},
			{NameExitSwitches, limit + 1},
		} {
			if got := testutil.CollectAndCount(c, tt.family); got != tt.want {
				t.Errorf("%s: got %d series, want %d", tt.family, got, tt.want)
			}
		}
	}
	err := testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP egressd_dropped_keys_total Keys not counted under their own name because there was no room.
# TYPE egressd_dropped_keys_total counter
egressd_dropped_keys_total %d
`, pairs-limit)), NameDropped)
	if err != nil {
		t.Error(err)
	}

	// What is not shown by name is in `other`: nothing is lost.
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	want := fmt.Sprintf("%s{code=\"200\",destination=\"other\",exit=\"other\"} %d\n", NameRequests, pairs-limit)
	if got := gather(t, registry); !strings.Contains(got, want) {
		t.Errorf("got no line %q in\n%s", want, got)
	}
}

// TestShownPairsStay holds that a pair which once had its name keeps it, also
// when it comes after others in a later scrape.
func TestShownPairsStay(t *testing.T) {
	src := &fake{lanes: []Lane{{Destination: "first", Exit: "direct", Waiting: 1}}}
	c := NewCollector(Config{Source: src, MaxPairs: 1})
	testutil.CollectAndCount(c)
	src.lanes = []Lane{{Destination: "late", Exit: "direct", Waiting: 5}, src.lanes[0]}
	err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP egressd_requests_waiting Requests that wait in the gate now.
# TYPE egressd_requests_waiting gauge
egressd_requests_waiting{destination="first",exit="direct"} 1
egressd_requests_waiting{destination="other",exit="other"} 5
`), NameWaiting)
	if err != nil {
		t.Error(err)
	}
}

func TestKernelErrorCostsOnlyItsFamilies(t *testing.T) {
	src := full()
	src.kernelErr = errors.New("map is gone")
	c := NewCollector(Config{Source: src})
	if got := testutil.CollectAndCount(c, NameConnections); got != 0 {
		t.Errorf("%s: got %d series, want 0", NameConnections, got)
	}
	if got := testutil.CollectAndCount(c, NameRequests); got == 0 {
		t.Errorf("%s: got no series", NameRequests)
	}
	err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP egressd_collect_errors_total Sources that could not be read during scrapes.
# TYPE egressd_collect_errors_total counter
egressd_collect_errors_total 3
`), NameCollectErrors)
	if err != nil {
		t.Error(err)
	}
}

func TestOddSourceDoesNotBreakTheScrape(t *testing.T) {
	src := full()
	src.tallies.Pairs = append(src.tallies.Pairs, Tally{
		Destination: "bad\xffname", Exit: "",
		Requests: []Count{{"", 1}},
		Wait:     policy.Histogram{Bounds: []float64{1}, Counts: []uint64{1}},
	}, Tally{
		Destination: "store", Exit: "direct",
		Wait: policy.Histogram{Bounds: []float64{7}, Counts: []uint64{1, 1}},
	})
	contradicts := policy.Histogram{Bounds: []float64{0}, Counts: []uint64{1, 1}, Fine: map[int]int64{0: 3}}
	src.tallies.Exits = append(src.tallies.Exits, ExitSeconds{Exit: "wg0", Seconds: contradicts}, ExitSeconds{Exit: "E-017", Seconds: policy.Histogram{
		Bounds: []float64{0, 1, 2}, Counts: []uint64{1, 0, 0, 0},
	}})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Config{Source: src}))
	if _, err := registry.Gather(); err != nil {
		t.Errorf("gather: %v", err)
	}
}

func TestConcurrentScrapesAgree(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Config{Source: full()}))
	want := gather(t, registry)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := gather(t, registry); got != want {
				t.Errorf("scrape differs: got\n%s\nwant\n%s", got, want)
			}
		})
	}
	wg.Wait()
}

func TestHandler(t *testing.T) {
	h, err := New(Config{Source: full(), Build: Build{Version: "v<1>"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	for _, tt := range []struct {
		path   string
		status int
		has    string
	}{
		{"/", 200, `<a href="/metrics">`},
		{"/", 200, "v&lt;1&gt;"},
		{"/metrics", 200, `egressd_requests_total{code="429",destination="store",exit="direct"} 1`},
		{"/metrics", 200, "go_goroutines"},
		{"/elsewhere", 404, ""},
	} {
		res, err := server.Client().Get(server.URL + tt.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != tt.status || !strings.Contains(string(body), tt.has) {
			t.Errorf("%s: got status %d and body %q, want %d and %q in it", tt.path, res.StatusCode, body, tt.status, tt.has)
		}
	}
}

// TestNativeHistogram scrapes as a server does that takes native histograms.
func TestNativeHistogram(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Config{Source: full()}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != NameExitRate {
			continue
		}
		h := f.GetMetric()[0].GetHistogram() // E-017 comes before direct
		if h.GetSchema() != policy.FineSchema || h.GetZeroCount() != 4 || h.GetSampleCount() != 8 {
			t.Errorf("got schema %d, %d zeros and %d values, want %d, 4 and 8", h.GetSchema(), h.GetZeroCount(), h.GetSampleCount(), policy.FineSchema)
		}
		deltas := h.GetPositiveDelta()
		if want := []int64{2, -1, 0}; !slices.Equal(deltas, want) {
			t.Errorf("got deltas %v, want %v", deltas, want)
		}
		if got := len(h.GetBucket()); got != 3 {
			t.Errorf("got %d classic buckets beside it, want 3", got)
		}
		if h := f.GetMetric()[1].GetHistogram(); h.Schema != nil {
			t.Errorf("got schema %d where there are no fine buckets", h.GetSchema())
		}
		return
	}
	t.Errorf("%s was not shown", NameExitRate)
}
