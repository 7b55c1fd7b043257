// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/egressd/egressd/policy"
)

// plain mirrors a Source in the plain way, by the metrics of constant values of
// the client library, all made anew at each scrape. What a Collector shows is
// compared with what plain shows.
type plain struct {
	source   Source
	build    Build
	limit    *limiter
	errors   atomic.Uint64
	families map[string]described
}

// described is one metric name.
type described struct {
	desc   *prometheus.Desc
	labels int
}

func newPlain(cfg Config) *plain {
	if cfg.MaxPairs <= 0 {
		cfg.MaxPairs = DefaultMaxPairs
	}
	c := &plain{source: cfg.Source, build: cfg.Build, limit: newLimiter(cfg.MaxPairs), families: make(map[string]described)}
	for _, f := range families {
		c.families[f.Name] = described{prometheus.NewDesc(f.Name, f.Help, f.Labels, nil), len(f.Labels)}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *plain) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector. A source that cannot be read costs
// its families, not the scrape.
func (c *plain) Collect(ch chan<- prometheus.Metric) {
	c.lanes(ch)
	tallies := c.source.Tallies()
	c.tallies(ch, tallies)
	dropped := tallies.Dropped
	if kernel, err := c.source.Kernel(); err != nil {
		c.errors.Add(1)
	} else {
		c.kernel(ch, kernel)
		dropped += kernel.Dropped
	}
	c.daemon(ch)
	// These two last: what went before may have changed them.
	c.counter(ch, NameDropped, float64(dropped)+float64(c.limit.count()))
	c.counter(ch, NameCollectErrors, float64(c.errors.Load()))
}

func (c *plain) lanes(ch chan<- prometheus.Metric) {
	waiting, cooldown := c.table(NameWaiting), c.table(NameCooldown)
	rate, budget := c.table(NameLaneRate), c.table(NameLaneBudget)
	bound, hosts, modes := c.table(NameOversendBound), c.table(NameFleetHosts), map[string]float64{}
	for _, l := range c.source.Lanes() {
		p := pair{l.Destination, l.Exit}
		waiting.add(p, "", float64(l.Waiting))
		cooldown.atLeast(p, max(0, l.Cooldown.Seconds()))
		rate.add(p, "", l.Rate)
		budget.add(p, "", l.Budget)
		if f := l.Fleet; f != nil {
			bound.atLeast(p, f.Bound)
			hosts.atLeast(p, float64(f.Hosts))
			modes[f.Mode]++
		}
	}
	for _, t := range []*table{waiting, cooldown, rate, budget, bound, hosts} {
		t.send(ch, prometheus.GaugeValue)
	}
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		c.gauge(ch, NameFleetLanes, modes[mode], mode)
	}
}

func (c *plain) tallies(ch chan<- prometheus.Metric, all Tallies) {
	requests, refused := c.table(NameRequests), c.table(NameRefused)
	retries, limited, bytes := c.table(NameRetries), c.table(NameLimited), c.table(NameBytes)
	byOutcome := c.table(NameExitBytes)
	waits := c.histograms(NameWait)
	for _, t := range all.Pairs {
		p := pair{t.Destination, t.Exit}
		for _, n := range t.Requests {
			requests.add(p, statusLabel(n.Label), float64(n.N))
		}
		refused.addAll(p, t.Refused)
		retries.add(p, "", float64(t.Retried))
		limited.addAll(p, t.Limited)
		bytes.add(p, "sent", float64(t.Sent))
		bytes.add(p, "received", float64(t.Received))
		for _, o := range t.Outcomes {
			byOutcome.addBoth(p, "sent", o.Outcome, float64(o.Sent))
			byOutcome.addBoth(p, "received", o.Outcome, float64(o.Received))
		}
		waits.add(p, t.Wait)
	}
	for _, t := range []*table{requests, refused, retries, limited, bytes, byOutcome} {
		t.send(ch, prometheus.CounterValue)
	}
	waits.send(ch)

	seconds, lockstep := c.histograms(NameExitRate), c.table(NameLockstep)
	for _, e := range all.Exits {
		p := pair{exit: e.Exit}
		seconds.add(p, e.Seconds)
		if e.HasLockstep {
			lockstep.atLeast(p, e.Lockstep)
		}
	}
	price := c.table(NameExitPrice)
	for _, e := range all.Prices {
		if p := (pair{exit: e.Exit}); price.last.of(c, NameExitPrice, p) != (pair{Other, Other}) {
			price.atLeast(p, e.Price)
		}
	}
	price.send(ch, prometheus.GaugeValue)
	seconds.send(ch)
	lockstep.send(ch, prometheus.GaugeValue)
	switches := c.table(NameExitSwitches)
	for _, s := range all.Switches {
		switches.add(pair{s.From, s.To}, s.Pool, float64(s.N))
	}
	switches.send(ch, prometheus.CounterValue)
	c.counter(ch, NameExitMismatch, float64(all.ExitMismatches))
	c.counter(ch, NameEventsLost, float64(all.EventsLost))
	for _, n := range all.Fleet {
		c.counter(ch, NameFleetCalls, float64(n.OK), n.Kind, "answered")
		c.counter(ch, NameFleetCalls, float64(n.Failed), n.Kind, "failed")
		c.counter(ch, NameFleetCallSeconds, n.Seconds, n.Kind)
	}
	c.tls(ch, all.TLS)
}

func (c *plain) tls(ch chan<- prometheus.Metric, t TLS) {
	for _, n := range t.Open {
		c.gauge(ch, NameTLSSight, float64(n.N), n.Label)
	}
	for _, n := range t.Answers {
		c.counter(ch, NameTLSAnswers, float64(n.N), n.Label)
	}
	for _, n := range t.Doubts {
		c.counter(ch, NameTLSDoubts, float64(n.N), n.Label)
	}
	c.counter(ch, NameTLSUnknown, float64(t.Unknown))
	c.counter(ch, NameTLSShared, float64(t.Shared))
}

func (c *plain) kernel(ch chan<- prometheus.Metric, k Kernel) {
	connections, retransmits := c.table(NameConnections), c.table(NameRetransmits)
	handshakes, seconds := c.table(NameHandshakes), c.table(NameHandshakeSeconds)
	for _, n := range k.Connections {
		p := pair{n.Destination, n.Exit}
		connections.addAll(p, n.Outcomes)
		retransmits.add(p, "", float64(n.Retransmits))
		handshakes.add(p, "", float64(n.Handshakes))
		seconds.add(p, "", n.HandshakeTime.Seconds())
	}
	for _, t := range []*table{connections, retransmits, handshakes, seconds} {
		t.send(ch, prometheus.CounterValue)
	}
	quic := c.table(NameQUIC)
	for _, n := range k.QUIC {
		quic.addAll(pair{n.Destination, n.Exit}, n.Outcomes)
	}
	quic.send(ch, prometheus.CounterValue)
	untouched := make(map[string]uint64)
	for _, n := range k.Untouched {
		untouched[n.Label] += n.N
	}
	for _, reason := range slices.Sorted(maps.Keys(untouched)) {
		c.counter(ch, NameUntouched, float64(untouched[reason]), reason)
	}
	programs := make(map[string]float64)
	for _, p := range k.Programs {
		programs[p.Program] += p.Time.Seconds()
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		c.counter(ch, NameProgramSeconds, programs[name], name)
	}
}

func (c *plain) daemon(ch chan<- prometheus.Metric) {
	c.gauge(ch, NameBuildInfo, 1, c.build.Version, c.build.Revision, c.build.GoVersion)
	reload := c.source.Reload()
	ok := 0.0
	if reload.OK {
		ok = 1
	}
	c.gauge(ch, NameReloadSuccessful, ok)
	at := 0.0
	if !reload.Last.IsZero() {
		at = float64(reload.Last.UnixMilli()) / 1e3
	}
	c.gauge(ch, NameReloadTime, at)
}

func (c *plain) counter(ch chan<- prometheus.Metric, name string, v float64, labels ...string) {
	c.send(ch, name, prometheus.CounterValue, v, labels...)
}

func (c *plain) gauge(ch chan<- prometheus.Metric, name string, v float64, labels ...string) {
	c.send(ch, name, prometheus.GaugeValue, v, labels...)
}

func (c *plain) send(ch chan<- prometheus.Metric, name string, kind prometheus.ValueType, v float64, labels ...string) {
	for i := range labels {
		labels[i] = clean(labels[i])
	}
	desc := c.families[name].desc
	m, err := prometheus.NewConstMetric(desc, kind, v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	ch <- m
}

// plainSeries is one label set: a pair and, in some families, one or two labels
// more.
type plainSeries struct {
	pair
	third, fourth string
}

func (s plainSeries) compare(t plainSeries) int {
	return cmp.Or(cmp.Compare(s.destination, t.destination), cmp.Compare(s.exit, t.exit), cmp.Compare(s.third, t.third), cmp.Compare(s.fourth, t.fourth))
}

// labels are the values for a family of that many labels. A family of one has
// the exit alone.
func (s plainSeries) labels(n int) []string {
	all := []string{s.destination, s.exit, s.third, s.fourth}
	if n == 1 {
		return all[1:2]
	}
	return all[:n]
}

// table gathers one family during one scrape, so that what shares its labels
// becomes one series.
type table struct {
	c      *plain
	name   string
	values map[plainSeries]float64
	last   lastShown
}

func (c *plain) table(name string) *table {
	return &table{c: c, name: name, values: make(map[plainSeries]float64)}
}

// lastShown is a pair and the one under which a family shows it. Sources give
// what they have of a pair in a row, so the last one is worth remembering.
type lastShown struct{ pair, as pair }

// of is the pair under which family name shows p.
func (s *lastShown) of(c *plain, name string, p pair) pair {
	if s.pair != p || s.as == (pair{}) {
		s.pair, s.as = p, c.limit.admit(name, pair{clean(p.destination), clean(p.exit)})
	}
	return s.as
}

func (t *table) add(p pair, third string, v float64) { t.addBoth(p, third, "", v) }

func (t *table) addBoth(p pair, third, fourth string, v float64) {
	t.values[plainSeries{t.last.of(t.c, t.name, p), third, fourth}] += v
}

func (t *table) addAll(p pair, counts []Count) {
	for _, n := range counts {
		t.add(p, n.Label, float64(n.N))
	}
}

func (t *table) atLeast(p pair, v float64) {
	k := plainSeries{pair: t.last.of(t.c, t.name, p)}
	t.values[k] = max(t.values[k], v)
}

func (t *table) send(ch chan<- prometheus.Metric, kind prometheus.ValueType) {
	for _, k := range slices.SortedFunc(maps.Keys(t.values), plainSeries.compare) {
		t.c.send(ch, t.name, kind, t.values[k], k.labels(t.c.families[t.name].labels)...)
	}
}

// histograms gathers one family of histograms during one scrape.
type histograms struct {
	c      *plain
	name   string
	merged map[plainSeries]policy.Histogram
	last   lastShown
}

func (c *plain) histograms(name string) *histograms {
	return &histograms{c: c, name: name, merged: make(map[plainSeries]policy.Histogram)}
}

// add merges h into the series of p. Bounds are one constant of the source, so
// histograms with other bounds are a mistake in it; they are left out, and
// counted, rather than mixed.
func (t *histograms) add(p pair, h policy.Histogram) {
	if len(h.Counts) == 0 {
		return
	}
	if len(h.Counts) != len(h.Bounds)+1 || zeros(h) > h.Counts[0] {
		t.c.errors.Add(1)
		return
	}
	k := plainSeries{pair: t.last.of(t.c, t.name, p)}
	have, ok := t.merged[k]
	if ok && (!slices.Equal(have.Bounds, h.Bounds) || (have.Fine == nil) != (h.Fine == nil)) {
		t.c.errors.Add(1)
		return
	}
	if !ok {
		have = policy.Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts))}
		if h.Fine != nil {
			have.Fine = make(map[int]int64, len(h.Fine))
		}
	}
	for i, n := range h.Counts {
		have.Counts[i] += n
	}
	have.Sum += h.Sum
	for i, n := range h.Fine {
		have.Fine[i] += n
	}
	t.merged[k] = have
}

func (t *histograms) send(ch chan<- prometheus.Metric) {
	family := t.c.families[t.name]
	for _, k := range slices.SortedFunc(maps.Keys(t.merged), plainSeries.compare) {
		h := t.merged[k]
		buckets := make(map[float64]uint64, len(h.Bounds))
		var below uint64
		for i, bound := range h.Bounds {
			below += h.Counts[i]
			buckets[bound] = below
		}
		labels := k.labels(family.labels)
		m, err := prometheus.NewConstHistogram(family.desc, h.Count(), h.Sum, buckets, labels...)
		if err == nil && h.Fine != nil {
			m, err = withNative(m, family.desc, h, labels)
		}
		if err != nil {
			m = prometheus.NewInvalidMetric(family.desc, err)
		}
		ch <- m
	}
}

// limiter bounds the pairs that each family shows. A pair that came in time
// keeps its name for the life of the process, so that a counter never jumps
// from one series to another; a later one is shown as other.
type limiter struct {
	max int

	shown   map[string]map[pair]struct{} // by family
	dropped map[pair]struct{}            // at most maxRemembered
}

func newLimiter(limit int) *limiter {
	return &limiter{
		max:     limit,
		shown:   make(map[string]map[pair]struct{}),
		dropped: make(map[pair]struct{}),
	}
}

// admit returns p, or the pair under which family shows it.
func (l *limiter) admit(family string, p pair) pair {
	if p.exit == Other && (p.destination == Other || p.destination == "") {
		return pair{Other, Other}
	}
	shown := l.shown[family]
	if shown == nil {
		shown = make(map[pair]struct{})
		l.shown[family] = shown
	}
	if _, ok := shown[p]; ok {
		return p
	}
	if len(shown) < l.max {
		shown[p] = struct{}{}
		return p
	}
	if _, ok := l.dropped[p]; !ok && len(l.dropped) < maxRemembered {
		l.dropped[p] = struct{}{}
	}
	return pair{Other, Other}
}

// count is the number of different pairs that some family did not show.
func (l *limiter) count() int {
	return len(l.dropped)
}

// dual is a histogram with classic buckets and native ones. A server that
// scrapes native histograms takes those, every other one the classic buckets;
// the client library has metrics of constant values for one or the other only.
type dual struct {
	prometheus.Metric
	native prometheus.Metric
}

// withNative adds the fine buckets of h to its classic histogram.
func withNative(classic prometheus.Metric, desc *prometheus.Desc, h policy.Histogram, labels []string) (prometheus.Metric, error) {
	native, err := prometheus.NewConstNativeHistogram(desc, h.Count(), h.Sum, h.Fine, nil, zeros(h), policy.FineSchema, 0, time.Time{}, labels...)
	if err != nil {
		return nil, err
	}
	return dual{classic, native}, nil
}

// Write implements prometheus.Metric.
func (d dual) Write(out *dto.Metric) error {
	var native dto.Metric
	if err := d.native.Write(&native); err != nil {
		return err
	}
	if err := d.Metric.Write(out); err != nil {
		return err
	}
	h, n := out.Histogram, native.Histogram
	h.Schema, h.ZeroThreshold, h.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	h.PositiveSpan, h.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	return nil
}
