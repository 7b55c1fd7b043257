// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// crowded is a source of so many lanes, each with a pair of labels and counts
// of its own.
func crowded(lanes int) *fake {
	src := full()
	src.lanes, src.tallies.Pairs = nil, nil
	bounds := make([]float64, 13)
	for b := range bounds {
		bounds[b] = float64(b)
	}
	for i := range lanes {
		destination, exit := fmt.Sprintf("host-%d.example", i/10), fmt.Sprintf("E-%03d", i%10)
		src.lanes = append(src.lanes, Lane{Destination: destination, Exit: exit, Waiting: i % 3, Rate: 1, Budget: 2})
		tally := Tally{
			Destination: destination, Exit: exit,
			Requests: []Count{{NoAnswer, 1}, {"200", 70}, {"429", 2}},
			Refused:  []Count{{"queue_full", 0}, {"max_wait", 3}, {"framing", 0}, {"shutdown", 0}},
			Limited:  []Count{{"limited", 2}, {"capacity", 0}, {"challenge", 0}, {"exit-trouble", 0}},
			Wait:     policy.Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)},
			Sent:     1000, Received: 20000,
		}
		for b := range tally.Wait.Counts {
			tally.Wait.Counts[b] = 5
		}
		for _, o := range policy.Outcomes() {
			tally.Outcomes = append(tally.Outcomes, OutcomeBytes{Outcome: o.String(), Sent: 200, Received: 4000})
		}
		src.tallies.Pairs = append(src.tallies.Pairs, tally)
	}
	return src
}

// discard is a client that takes everything at once.
type discard struct {
	head http.Header
	n    int
}

func (d *discard) Header() http.Header         { return d.head }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }

// processorTime is what the process has used of all processors, garbage
// collection included. It is the same on a busy machine.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScrape is a scrape of many lanes up to the bytes that are sent, with
// the bound of pairs that is the default; and, as plain, the same by the client
// library alone, with all its checks.
func BenchmarkScrape(b *testing.B) {
	const acceptOpen = "application/openmetrics-text;version=1.0.0"
	for _, lanes := range []int{100, 10_000} {
		cfg := Config{Source: crowded(lanes)}
		quick, err := New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		// Without offering it, as New does, there would be nothing to measure.
		open := promhttp.HandlerFor(gatherer{NewCollector(cfg), prometheus.NewRegistry()}, promhttp.HandlerOpts{EnableOpenMetrics: true})
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(newPlain(cfg))
		plain := promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
		for _, way := range []struct {
			name    string
			handler http.Handler
			accept  string
		}{
			{"text", quick, acceptText},
			{"openmetrics", open, acceptOpen},
			{"protobuf", quick, acceptProto},
			{"plain-text", plain, acceptText},
			{"plain-openmetrics", plain, acceptOpen},
			{"plain-protobuf", plain, acceptProto},
		} {
			for _, encoding := range []string{"identity", "gzip"} {
				b.Run(fmt.Sprintf("lanes=%d/%s/%s", lanes, way.name, encoding), func(b *testing.B) {
					req := httptest.NewRequest("GET", "/metrics", nil)
					req.Header = http.Header{"Accept": {way.accept}, "Accept-Encoding": {encoding}}
					way.handler.ServeHTTP(&discard{head: http.Header{}}, req) // the first meets all
					b.ReportAllocs()
					size, before := 0, processorTime(b)
					for b.Loop() {
						d := &discard{head: http.Header{}}
						way.handler.ServeHTTP(d, req)
						size = d.n
					}
					b.ReportMetric(float64(size)/1e3, "kB")
					b.ReportMetric(float64(processorTime(b)-before)/1e6/float64(b.N), "cpu-ms/op")
				})
			}
		}
	}
}

// BenchmarkFirstScrape is that of a process, which makes all series.
func BenchmarkFirstScrape(b *testing.B) {
	src := crowded(10_000)
	for b.Loop() {
		if _, err := writeText(io.Discard, nil, NewCollector(Config{Source: src}).read(), nil); err != nil {
			b.Fatal(err)
		}
	}
}
