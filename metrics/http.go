// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// New returns what answers on the metrics address: /metrics, with the
// collector of cfg and those of the Go runtime and the process in a registry
// of their own, and a plain index that says so. Errors of scrapes go to log.
func New(cfg Config, log *slog.Logger) (http.Handler, error) {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range []prometheus.Collector{
		NewCollector(cfg),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{log},
		Registry: registry,
		// Two scrapers and a person with curl; more at once is a mistake
		// that should not take the processor from the data path.
		MaxRequestsInFlight: 4,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>egressd</title><h1>egressd "+
			html.EscapeString(cfg.Build.Version)+"</h1><p><a href=\"/metrics\">metrics</a></p>\n")
	})
	return mux, nil
}

// errorLog passes what promhttp complains of on to slog.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics scrape", "err", fmt.Sprint(v...)) }
