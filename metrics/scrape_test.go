// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/policy"
)

// world makes sources of random values, of few names, so that they meet.
type world struct{ *rand.Rand }

func (w world) one(of ...string) string { return of[w.IntN(len(of))] }

func (w world) destination() string {
	return w.one("store", "api.example", "other", "bad\xffname", "bad\xfename", "q\"uote\\", "line\nbreak", "é", fmt.Sprintf("h%d", w.IntN(30)))
}

func (w world) exit() string {
	return w.one("direct", "all", "other", "E-017", "E-017/10001", "E-017/other", "", fmt.Sprintf("wg%d", w.IntN(5)))
}

func (w world) number() float64 {
	return []float64{0, 1, 0.1, 1e6, 999999, 1e21, 1 << 53, 12345.678, w.Float64(), math.Trunc(w.ExpFloat64() * 1e5)}[w.IntN(10)]
}

func (w world) counts(labels ...string) (out []Count) {
	for range w.IntN(4) {
		out = append(out, Count{w.one(labels...), w.Uint64N(1 << w.IntN(50))})
	}
	return out
}

func (w world) histogram(fine bool, bounds ...float64) policy.Histogram {
	if w.IntN(10) == 0 {
		bounds = bounds[1:] // a mistake of the source
	}
	h := policy.Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1), Sum: w.number()}
	for i := range h.Counts {
		h.Counts[i] = w.Uint64N(1000)
	}
	if fine {
		h.Fine = map[int]int64{}
		for left := int64(h.Count()-h.Counts[0]) + w.Int64N(2); left > 0; {
			n := 1 + w.Int64N(left)
			h.Fine[w.IntN(60)] += n
			left -= n
		}
	}
	return h
}

// some calls f up to n times.
func (w world) some(n int, f func()) {
	for range w.IntN(n + 1) {
		f()
	}
}

func (w world) fleet() *LaneFleet {
	if w.IntN(2) == 0 {
		return nil
	}
	return &LaneFleet{Mode: w.one("fleet", "share"), Hosts: w.IntN(9), Bound: w.number()}
}

func (w world) source() *fake {
	src := &fake{reload: Reload{OK: w.IntN(2) == 0}}
	if w.IntN(2) == 0 {
		src.reload.Last = time.UnixMilli(w.Int64N(1 << 41))
	}
	if w.IntN(10) == 0 {
		src.kernelErr = errors.New("map is gone")
	}
	w.some(60, func() {
		src.lanes = append(src.lanes, Lane{w.destination(), w.exit(), w.IntN(9), time.Duration(w.Int64N(4e9) - 2e9), w.number(), w.number(), w.fleet()})
	})
	t, k := &src.tallies, &src.kernel
	if w.IntN(2) == 0 {
		t.Fleet = []FleetCalls{{"book", w.Uint64N(9), w.Uint64N(9), w.number()}, {"watch", w.Uint64N(9), 0, w.number()}}
	}
	w.some(60, func() {
		t.Pairs = append(t.Pairs, Tally{
			Destination: w.destination(), Exit: w.exit(),
			Requests: w.counts("200", "429", "none", "1000", "", "x"),
			Refused:  w.counts("queue_full", "max_wait"), Limited: w.counts("limited", "bad\xff"),
			Retried: w.Uint64N(9), Wait: w.histogram(false, 0.005, 0.1, 1, 2.5, 1e6, 1e9), Sent: w.Uint64(), Received: w.Uint64N(1e6),
			Outcomes: []OutcomeBytes{{w.one("useful", "blocked"), w.Uint64N(1e9), 7}},
		})
	})
	w.some(20, func() {
		t.Exits = append(t.Exits, ExitSeconds{w.exit(), w.histogram(w.IntN(5) > 0, 0, 1, 2, 5), w.Float64(), w.IntN(2) == 0})
	})
	w.some(20, func() { t.Prices = append(t.Prices, ExitPrice{w.exit(), w.number()}) })
	w.some(20, func() {
		t.Switches = append(t.Switches, ExitSwitches{w.one("p", "q"), w.exit() + "-", w.exit(), w.Uint64N(99)})
	})
	t.ExitMismatches, t.Dropped = w.Uint64N(3), w.Uint64N(3)
	t.TLS = TLS{Open: []Count{{"keys", 3}, {"blind", 1}}, Doubts: []Count{{"no_keys", 2}}, Unknown: w.Uint64N(9), Shared: 1}
	w.some(40, func() {
		k.Connections = append(k.Connections, Connections{w.destination(), w.exit(), w.counts("redirected", "untouched", "granted", "held"), w.Uint64N(9), w.Uint64N(9), time.Duration(w.Int64N(1e9))})
	})
	w.some(9, func() {
		k.QUIC = append(k.QUIC, QUIC{w.destination(), w.exit(), w.counts("untouched", "refused")})
	})
	k.Untouched, k.Dropped = w.counts("heartbeat", "listener"), w.Uint64N(3)
	w.some(3, func() {
		k.Programs = append(k.Programs, ProgramTime{w.one("connect4", "connect6"), time.Duration(w.Int64N(1e12))})
	})
	return src
}

// pedantic is a registry that makes all its checks.
func pedantic(c prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return r
}

// encode writes families as the library does.
func encode(t testing.TB, all []*dto.MetricFamily, format expfmt.FormatType) string {
	t.Helper()
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(format))
	for _, f := range all {
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	if c, ok := enc.(expfmt.Closer); ok {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestQuickIsPlain holds that a Collector shows of random sources, one after
// the other, what the plain way shows of them, in each format, and that no
// check of the client library finds fault with it.
func TestQuickIsPlain(t *testing.T) {
	for seed := range uint64(6) {
		w := world{rand.New(rand.NewPCG(seed, 1))}
		src := new(fake)
		cfg := Config{Source: src, MaxPairs: 1 + w.IntN(40), Build: Build{"v1", "abc", "go"}}
		quick := NewCollector(cfg)
		plain, strict := pedantic(newPlain(cfg)), pedantic(NewCollector(cfg))
		for scrape := range 5 {
			*src = *w.source()
			want, err := plain.Gather()
			if err != nil {
				t.Fatalf("seed %d: the plain way: %v", seed, err)
			}
			frame := quick.read()
			got, err := frame.families()
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if _, err := strict.Gather(); err != nil {
				t.Fatalf("seed %d: scrape %d does not pass the checks of the library: %v", seed, scrape, err)
			}
			if len(got) != len(want) {
				t.Fatalf("seed %d: got %d families, want %d", seed, len(got), len(want))
			}
			for i := range want {
				if !proto.Equal(got[i], want[i]) {
					t.Fatalf("seed %d, scrape %d: got\n%v\nwant\n%v", seed, scrape, got[i], want[i])
				}
			}
			var text bytes.Buffer
			if _, err := writeText(&text, nil, frame, nil); err != nil {
				t.Fatal(err)
			}
			if got, want := text.String(), encode(t, want, expfmt.TypeTextPlain); got != want {
				t.Fatalf("seed %d, scrape %d: got text\n%s\nwant\n%s", seed, scrape, got, want)
			}
			for _, format := range []expfmt.FormatType{expfmt.TypeOpenMetrics, expfmt.TypeProtoDelim} {
				if encode(t, got, format) != encode(t, want, format) {
					t.Errorf("seed %d, scrape %d: format %v differs", seed, scrape, format)
				}
			}
		}
	}
}

// server answers scrapes of src.
func server(t testing.TB, src Source) *httptest.Server {
	t.Helper()
	h, err := New(Config{Source: src}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// ask scrapes and gives the head and the body as it came.
func ask(t testing.TB, url string, head http.Header) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if head != nil {
		req.Header = head
	}
	res, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

const (
	acceptText  = "text/plain;version=0.0.4"
	acceptProto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// TestFormats holds that each format has all families, ours and those of the
// process, in the order of their names, once, compressed or not; and that what
// is offered does not begin with OpenMetrics.
func TestFormats(t *testing.T) {
	s := server(t, full())
	for _, tt := range []struct {
		accept string
		want   expfmt.FormatType
	}{
		{"", expfmt.TypeTextPlain},
		{"*/*", expfmt.TypeTextPlain},
		{acceptText, expfmt.TypeTextPlain},
		{"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", expfmt.TypeTextPlain},
		{acceptProto, expfmt.TypeProtoDelim},
	} {
		for _, encoding := range []string{"", "gzip"} {
			head := http.Header{"Accept": {tt.accept}, "Accept-Encoding": {encoding}}
			res, body := ask(t, s.URL+"/metrics", head)
			if got := expfmt.ResponseFormat(res.Header).FormatType(); res.StatusCode != 200 || got != tt.want {
				t.Errorf("%v: got status %d and format %v, want 200 and %v", head, res.StatusCode, got, tt.want)
			}
			if got := res.Header.Get("Content-Encoding"); got != encoding {
				t.Errorf("%v: got encoding %q", head, got)
			}
			if vary := strings.Join(res.Header.Values("Vary"), ","); !strings.Contains(vary, "Accept,") && !strings.HasSuffix(vary, "Accept") || !strings.Contains(vary, "Accept-Encoding") {
				t.Errorf("%v: varies by %q, want both", head, vary)
			}
			var plain io.Reader = bytes.NewReader(body)
			if encoding == "gzip" {
				z, err := gzip.NewReader(plain)
				if err != nil {
					t.Fatal(err)
				}
				plain = z
			}
			seen := map[string]int{}
			for dec := expfmt.NewDecoder(plain, expfmt.ResponseFormat(res.Header)); ; {
				var f dto.MetricFamily
				err := dec.Decode(&f)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%v: %v", head, err)
				}
				seen[f.GetName()]++
				if f.GetName() == NameExitRate && tt.want == expfmt.TypeProtoDelim && f.Metric[0].Histogram.Schema == nil {
					t.Errorf("%v: got no native buckets", head)
				}
			}
			for _, name := range []string{NameRequests, NameWait, NameExitPrice, "go_goroutines", "process_start_time_seconds", "promhttp_metric_handler_errors_total"} {
				if seen[name] != 1 {
					t.Errorf("%v: got %s %d times", head, name, seen[name])
				}
			}
			if want := len(families); len(seen) < want {
				t.Errorf("%v: got %d families, want at least %d", head, len(seen), want)
			}
		}
	}
}

// TestFamiliesAreInOrder holds that text is in the order of names, however the
// families of others lie between ours.
func TestFamiliesAreInOrder(t *testing.T) {
	var rest []*dto.MetricFamily
	for _, name := range []string{"a", "egressd_lane_a", "egressd_z", "z"} {
		rest = append(rest, &dto.MetricFamily{Name: proto.String(name), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: proto.Float64(1)}}}})
	}
	var text bytes.Buffer
	if _, err := writeText(&text, nil, NewCollector(Config{Source: full()}).read(), rest); err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(text.String()) {
		if f := strings.Fields(line); f[1] == "TYPE" {
			names = append(names, f[2])
		}
	}
	if len(names) != len(families)+len(rest) || !slices.IsSorted(names) {
		t.Errorf("got %d families %v, want %d in order", len(names), names, len(families)+len(rest))
	}
}

func TestOnlyWhatIsAskedFor(t *testing.T) {
	_, body := ask(t, server(t, full()).URL+"/metrics?name[]="+NameLockstep, nil)
	want := "egressd_lockstep_score{exit=\"E-017\"} 0.75\n"
	if !strings.HasSuffix(string(body), want) || strings.Count(string(body), "# TYPE") != 1 {
		t.Errorf("got\n%s\nwant one family, ending in %s", body, want)
	}
}

// slowSource holds all who scrape it.
type slowSource struct {
	fake
	entered, leave chan struct{}
}

func (s *slowSource) Lanes() []Lane {
	s.entered <- struct{}{}
	<-s.leave
	return nil
}

func TestScrapesAtOnceAreBounded(t *testing.T) {
	src := &slowSource{entered: make(chan struct{}), leave: make(chan struct{})}
	s := server(t, src)
	leave := sync.OnceFunc(func() { close(src.leave) })
	t.Cleanup(leave) // before the server waits for them
	var wg sync.WaitGroup
	for i := range maxScrapes {
		wg.Go(func() {
			accept := []string{acceptText, acceptProto}[i%2]
			if res, _ := ask(t, s.URL+"/metrics", http.Header{"Accept": {accept}}); res.StatusCode != 200 {
				t.Errorf("got status %d", res.StatusCode)
			}
		})
	}
	for range maxScrapes {
		<-src.entered
	}
	if res, body := ask(t, s.URL+"/metrics", nil); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more: got status %d: %s", res.StatusCode, body)
	}
	leave()
	wg.Wait()
	go func() { <-src.entered }()
	if res, _ := ask(t, s.URL+"/metrics", nil); res.StatusCode != 200 {
		t.Errorf("when they are gone: got status %d", res.StatusCode)
	}
}

// broken fails from the n-th write on.
type broken struct{ left int }

func (b *broken) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// TestWriteErrorEndsTheText holds that an error stops the text at once, and is
// told, wherever it comes.
func TestWriteErrorEndsTheText(t *testing.T) {
	mine := NewCollector(Config{Source: crowded(100)}).read()
	rest, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		w := &broken{n}
		_, err := writeText(w, nil, mine, rest)
		if err == nil {
			if n < 10 {
				t.Errorf("got all with %d writes: this test is of more", n)
			}
			return
		}
		if !errors.Is(err, io.ErrClosedPipe) || w.left < -2 {
			t.Fatalf("after %d writes: got error %v and %d writes after it", n, err, -w.left-1)
		}
	}
}

// TestNumbers holds that numbers are written as the library writes them.
func TestNumbers(t *testing.T) {
	w := rand.New(rand.NewPCG(1, 2))
	values := []float64{0, math.Copysign(0, -1), 1, -1, 999999, 1e6, -999999, -1e6, 999999.5, 1 << 31, -1 << 31, 1 << 32, 1 << 53, 1e21, 1e300, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, math.SmallestNonzeroFloat64}
	for range 2000 {
		values = append(values, math.Float64frombits(w.Uint64()), float64(w.IntN(3e6)-15e5), float64(w.IntN(1e9))/1e3)
	}
	for _, v := range values {
		f := &dto.MetricFamily{Name: proto.String("m"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &v}}}}
		want := strings.TrimSuffix(strings.TrimPrefix(encode(t, []*dto.MetricFamily{f}, expfmt.TypeTextPlain), "# TYPE m gauge\nm "), "\n")
		if got := string(appendFloat(nil, v)); got != want {
			t.Errorf("%b: got %s, want %s", v, got, want)
		}
	}
}

// TestScrapesMakeLittle holds that a scrape of many lanes makes next to nothing
// anew: that is what it is quick by, and can be told on a busy machine.
func TestScrapesMakeLittle(t *testing.T) {
	cfg := Config{Source: crowded(10_000)}
	h, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header = http.Header{"Accept-Encoding": {"gzip"}}
	got := testing.AllocsPerRun(2, func() { h.ServeHTTP(&discard{head: http.Header{}}, req) })
	if got > 5000 { // for some 26 000 series; those of the Go runtime take a thousand
		t.Errorf("got %v allocations", got)
	}
}
