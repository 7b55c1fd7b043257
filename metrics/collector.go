// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the families.
const (
	NameRequests         = "egressd_requests_total"
	NameRefused          = "egressd_requests_refused_total"
	NameRetries          = "egressd_retries_absorbed_total"
	NameWait             = "egressd_request_wait_seconds"
	NameWaiting          = "egressd_requests_waiting"
	NameConnections      = "egressd_connections_total"
	NameRetransmits      = "egressd_retransmits_total"
	NameHandshakes       = "egressd_handshakes_total"
	NameHandshakeSeconds = "egressd_handshake_seconds_total"
	NameUntouched        = "egressd_untouched_total"
	NameQUIC             = "egressd_quic_total"
	NameBytes            = "egressd_bytes_total"
	NameCooldown         = "egressd_cooldown_seconds"
	NameLaneRate         = "egressd_lane_rate"
	NameLaneBudget       = "egressd_lane_budget"
	NameLimited          = "egressd_limited_total"
	NameExitRate         = "egressd_exit_requests_per_second"
	NameLockstep         = "egressd_lockstep_score"
	NameExitBytes        = "egressd_exit_bytes_total"
	NameExitSwitches     = "egressd_exit_switches_total"
	NameExitMismatch     = "egressd_exit_mismatch_total"
	NameTLSSight         = "egressd_tls_sight"
	NameTLSAnswers       = "egressd_tls_answers_total"
	NameTLSUnknown       = "egressd_tls_unknown_answers_total"
	NameTLSDoubts        = "egressd_tls_doubts_total"
	NameTLSShared        = "egressd_tls_shared_requests_total"
	NameProgramSeconds   = "egressd_program_seconds_total"
	NameBuildInfo        = "egressd_build_info"
	NameReloadSuccessful = "egressd_config_last_reload_successful"
	NameReloadTime       = "egressd_config_last_reload_success_timestamp_seconds"
	NameDropped          = "egressd_dropped_keys_total"
	NameCollectErrors    = "egressd_collect_errors_total"
)

// DefaultMaxPairs is the default of Config.MaxPairs.
const DefaultMaxPairs = 512

// Config is what a Collector needs.
type Config struct {
	Source Source
	Build  Build
	// MaxPairs bounds the pairs of destination and exit that each family
	// shows; further ones are added up under `other`. Zero is
	// DefaultMaxPairs.
	MaxPairs int
}

// Collector mirrors a Source. It is safe for concurrent use.
type Collector struct {
	source   Source
	build    Build
	limit    *limiter
	errors   atomic.Uint64
	families map[string]family
}

// family is one metric name.
type family struct {
	desc   *prometheus.Desc
	labels int
}

// NewCollector makes a collector. It reads nothing until it is scraped.
func NewCollector(cfg Config) *Collector {
	if cfg.MaxPairs <= 0 {
		cfg.MaxPairs = DefaultMaxPairs
	}
	c := &Collector{
		source:   cfg.Source,
		build:    cfg.Build,
		limit:    newLimiter(cfg.MaxPairs),
		families: make(map[string]family, len(families)),
	}
	for _, f := range families {
		c.families[f.Name] = family{prometheus.NewDesc(f.Name, f.Help, f.Labels, nil), len(f.Labels)}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		ch <- c.families[f.Name].desc
	}
}

// Collect implements prometheus.Collector. A source that cannot be read costs
// its families, not the scrape.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
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

func (c *Collector) lanes(ch chan<- prometheus.Metric) {
	waiting, cooldown := c.table(NameWaiting), c.table(NameCooldown)
	rate, budget := c.table(NameLaneRate), c.table(NameLaneBudget)
	for _, l := range c.source.Lanes() {
		p := pair{l.Destination, l.Exit}
		waiting.add(p, "", float64(l.Waiting))
		cooldown.atLeast(p, max(0, l.Cooldown.Seconds()))
		rate.add(p, "", l.Rate)
		budget.add(p, "", l.Budget)
	}
	for _, t := range []*table{waiting, cooldown, rate, budget} {
		t.send(ch, prometheus.GaugeValue)
	}
}

func (c *Collector) tallies(ch chan<- prometheus.Metric, all Tallies) {
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
	seconds.send(ch)
	lockstep.send(ch, prometheus.GaugeValue)
	switches := c.table(NameExitSwitches)
	for _, s := range all.Switches {
		switches.add(pair{s.From, s.To}, s.Pool, float64(s.N))
	}
	switches.send(ch, prometheus.CounterValue)
	c.counter(ch, NameExitMismatch, float64(all.ExitMismatches))
	c.tls(ch, all.TLS)
}

func (c *Collector) tls(ch chan<- prometheus.Metric, t TLS) {
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

// NoAnswer is the code of requests that were sent and got no answer.
const NoAnswer = "none"

// statusLabel keeps the label code to what HTTP can say.
func statusLabel(code string) string {
	if code == NoAnswer {
		return code
	}
	if n, err := strconv.Atoi(code); err != nil || n < 100 || n > 599 || len(code) != 3 {
		return Other
	}
	return code
}

func (c *Collector) kernel(ch chan<- prometheus.Metric, k Kernel) {
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

func (c *Collector) daemon(ch chan<- prometheus.Metric) {
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

func (c *Collector) counter(ch chan<- prometheus.Metric, name string, v float64, labels ...string) {
	c.send(ch, name, prometheus.CounterValue, v, labels...)
}

func (c *Collector) gauge(ch chan<- prometheus.Metric, name string, v float64, labels ...string) {
	c.send(ch, name, prometheus.GaugeValue, v, labels...)
}

func (c *Collector) send(ch chan<- prometheus.Metric, name string, kind prometheus.ValueType, v float64, labels ...string) {
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
