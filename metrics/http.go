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
)

// New returns what answers on the metrics address: /metrics, with the families
// of a Collector and those of the Go runtime and the process, and the page of cfg
// or a plain index that says so. Errors of scrapes go to log.
func New(cfg Config, log *slog.Logger) (http.Handler, error) {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	scrapes, err := newScrapes(NewCollector(cfg), registry, log)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes)
	if cfg.Page != nil {
		mux.Handle("/", cfg.Page)
		return mux, nil
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>egressd</title><h1>egressd "+
			html.EscapeString(cfg.Build.Version)+"</h1><p><a href=\"/metrics\">metrics</a></p>\n")
	})
	return mux, nil
}
