// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// gatherer gives the families of a collector beside those of a registry. It
// makes none of the checks by which a registry tells that a collector
// contradicts itself: here one function makes every label set, once, and tests
// hold the result to those checks.
type gatherer struct {
	mine *Collector
	rest prometheus.Gatherer
}

// Gather implements prometheus.Gatherer.
func (g gatherer) Gather() ([]*dto.MetricFamily, error) {
	mine, err := g.mine.read().families()
	rest, restErr := g.rest.Gather()
	all := append(mine, rest...)
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all, errors.Join(err, restErr)
}

// scrapes answers GET /metrics: in the text format by itself, in the others by
// the client library. OpenMetrics is not offered: all that it has beyond the
// text are exemplars and times of creation, and there are none.
type scrapes struct {
	gatherer
	others http.Handler
	log    *slog.Logger
	places chan struct{} // for those who are being answered
	bufs   sync.Pool     // of *[]byte
}

// maxScrapes bounds the scrapes under way. Two scrapers and a person with curl;
// more at once is a mistake that should not take the processor from the data
// path.
const maxScrapes = 4

// newScrapes makes the handler, and registers the library's own families.
func newScrapes(c *Collector, rest *prometheus.Registry, log *slog.Logger) (http.Handler, error) {
	s := &scrapes{gatherer: gatherer{c, rest}, log: log, places: make(chan struct{}, maxScrapes)}
	s.bufs.New = func() any { return new(make([]byte, 0, 2*chunk)) }
	s.others = promhttp.HandlerFor(s.gatherer, promhttp.HandlerOpts{
		ErrorLog:           errorLog{log},
		Registry:           rest,
		DisableCompression: true, // by what follows
	})
	// Names and labels repeat so much that the least effort finds nearly all;
	// the usual one takes longer than everything else.
	compressed, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false),
		gzhttp.ContentTypeFilter(gzhttp.CompressAllContentTypeFilter))
	if err != nil {
		return nil, fmt.Errorf("compress scrapes: %w", err)
	}
	return compressed(s), nil
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		http.Error(w, fmt.Sprintf("%d scrapes are being answered, try again later.", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...)
	if format.FormatType() != expfmt.TypeTextPlain || r.URL.Query().Has("name[]") {
		s.others.ServeHTTP(w, r)
		return
	}
	w.Header().Add("Vary", "Accept")
	w.Header().Set("Content-Type", string(format))
	rest, err := s.rest.Gather()
	if err != nil {
		s.log.Warn("metrics scrape", "err", err)
	}
	buf := s.bufs.Get().(*[]byte)
	defer s.bufs.Put(buf)
	// An error is that of the connection, and the scraper has it.
	*buf, _ = writeText(w, (*buf)[:0], s.mine.read(), rest)
}

// writeText writes families in the order of their names, by way of buf, and
// returns what buf has become.
func writeText(w io.Writer, buf []byte, mine frame, rest []*dto.MetricFamily) (_ []byte, err error) {
	flush := func() {
		if err == nil {
			_, err = w.Write(buf)
		}
		buf = buf[:0]
	}
	for i := range mine {
		for ; len(rest) > 0 && rest[0].GetName() < mine[i].Name && err == nil; rest = rest[1:] {
			flush()
			_, err = expfmt.MetricFamilyToText(w, rest[0])
		}
		if err == nil {
			buf, err = mine[i].writeText(w, buf)
		}
	}
	flush()
	for ; len(rest) > 0 && err == nil; rest = rest[1:] {
		_, err = expfmt.MetricFamilyToText(w, rest[0])
	}
	return buf, err
}

// errorLog passes what promhttp complains of on to slog.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics scrape", "err", fmt.Sprint(v...)) }
