// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

const noon = ledger.Time(12 * time.Hour)

// busyEngine has so many lanes, each of a host that the policy names and of
// one of ten exits, and each with counts.
func busyEngine(tb testing.TB, lanes int) *policy.Engine {
	tb.Helper()
	text := "exits:\n"
	for i := range 10 {
		text += fmt.Sprintf("  - {name: E-%d, proxy: \"192.0.2.%d:80\", price: %d}\n", i, i+1, i)
	}
	text += "budgets:\n  - {name: all, rate: 1/s, match: {hosts: ["
	for i := range (lanes + 9) / 10 {
		text += fmt.Sprintf("h%d.example,", i)
	}
	p, err := config.Parse("f", []byte(text+"]}}\n"))
	if err != nil {
		tb.Fatal(err)
	}
	e, err := policy.NewEngine(p, make([]ledger.Cell, lanes+64), nil, noon)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range lanes {
		var dst [policy.MaxLanes]*policy.Lane
		f := &policy.Facts{Dest: netip.MustParseAddrPort("198.51.100.7:80"), Host: fmt.Sprintf("h%d.example", i/10), Exit: fmt.Sprintf("E-%d", i%10)}
		for _, l := range e.Select(dst[:0], f, policy.ForRequest, noon) {
			l.Tally.CountCode(200)
			l.Tally.CountCode(429)
			l.Tally.CountLimited(verdict.Limited)
			l.Tally.ObserveWait(time.Duration(i) * time.Millisecond)
			l.Tally.AddExchange(policy.Useful, 100, 1000)
			e.Meter(f.Exit).Count(noon)
		}
	}
	if got := len(e.Lanes()); got < lanes {
		tb.Fatalf("got %d lanes, want %d", got, lanes)
	}
	return e
}

// TestPricesOfExits holds that exits which are used have the price that the
// policy tells, if it tells one, and once.
func TestPricesOfExits(t *testing.T) {
	got := showTallies(busyEngine(t, 20), noon).Prices
	slices.SortFunc(got, func(a, b metrics.ExitPrice) int { return int(a.Price - b.Price) })
	if len(got) != 9 { // E-0 has none
		t.Fatalf("got %v, want the prices of nine exits", got)
	}
	for i, p := range got {
		if want := (metrics.ExitPrice{Exit: fmt.Sprintf("E-%d", i+1), Price: float64(i + 1)}); p != want {
			t.Errorf("got %v, want %v", p, want)
		}
	}
}

// sourceOf is a source without a kernel and a proxy.
type sourceOf struct{ *policy.Engine }

func (s sourceOf) Lanes() []metrics.Lane           { return showLanes(s.Engine, noon) }
func (s sourceOf) Tallies() metrics.Tallies        { return showTallies(s.Engine, noon) }
func (s sourceOf) Kernel() (metrics.Kernel, error) { return metrics.Kernel{}, nil }
func (s sourceOf) Reload() metrics.Reload          { return metrics.Reload{} }

// discard takes what is answered.
type discard struct{ head http.Header }

func (d discard) Header() http.Header       { return d.head }
func (discard) WriteHeader(int)             {}
func (discard) Write(p []byte) (int, error) { return io.Discard.Write(p) }

// BenchmarkScrapeOfLanes is a scrape as Prometheus makes it, with all that the
// engine is read for, of 10 000 lanes.
func BenchmarkScrapeOfLanes(b *testing.B) {
	e := busyEngine(b, 10_000)
	h, err := metrics.New(metrics.Config{Source: sourceOf{e}}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			f()
			before := processorTime(b)
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(processorTime(b)-before)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
	run("lanes", func() { showLanes(e, noon) })
	run("tallies", func() { showTallies(e, noon) })
	for format, accept := range map[string]string{
		"text": "text/plain", "protobuf": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header = http.Header{"Accept": {accept}, "Accept-Encoding": {"gzip"}}
		run("scrape/"+format, func() { h.ServeHTTP(discard{http.Header{}}, req) })
	}
}

// processorTime is what the process has used of all processors.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
