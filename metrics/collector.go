// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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
	NameExitPrice        = "egressd_exit_price"
	NameExitSwitches     = "egressd_exit_switches_total"
	NameExitMismatch     = "egressd_exit_mismatch_total"
	NameTLSSight         = "egressd_tls_sight"
	NameTLSAnswers       = "egressd_tls_answers_total"
	NameTLSUnknown       = "egressd_tls_unknown_answers_total"
	NameTLSDoubts        = "egressd_tls_doubts_total"
	NameTLSShared        = "egressd_tls_shared_requests_total"
	NameOversendBound    = "egressd_oversend_bound"
	NameFleetHosts       = "egressd_fleet_hosts"
	NameFleetLanes       = "egressd_fleet_lanes"
	NameFleetCalls       = "egressd_fleet_calls_total"
	NameFleetCallSeconds = "egressd_fleet_call_seconds_total"
	NameProgramSeconds   = "egressd_program_seconds_total"
	NameBuildInfo        = "egressd_build_info"
	NameReloadSuccessful = "egressd_config_last_reload_successful"
	NameReloadTime       = "egressd_config_last_reload_success_timestamp_seconds"
	NameEventsLost       = "egressd_events_lost_total"
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
	// Page answers for all but /metrics; nil: a plain index does.
	Page http.Handler
}

// Collector mirrors a Source. It is safe for concurrent use.
type Collector struct {
	source   Source
	build    Build
	maxPairs int
	errors   atomic.Uint64
	families []*family // in the order of their names
	byName   map[string]*family

	// One scrape at a time counts; it encodes what it counted without this.
	mu      sync.Mutex
	scrapes uint64
	known   map[pair]*who
	nobody  *who   // of families that have no pair
	late    *who   // who comes when too many are known
	missed  uint64 // pairs that some family does not show
}

// family is one metric name, and all its series so far.
type family struct {
	Family
	c           *Collector
	index       int
	kind        dto.MetricType
	desc        *prometheus.Desc
	destination bool   // a label tells the destination, or the exit before a switch
	head        string // before its lines of text

	// Under mu of the collector.
	series []*series
	sorted bool  // series are in order
	live   int   // of them that the present scrape has met
	pairs  int   // that have their own name
	others place // of all other pairs
}

// NewCollector makes a collector. It reads nothing until it is scraped.
func NewCollector(cfg Config) *Collector {
	if cfg.MaxPairs <= 0 {
		cfg.MaxPairs = DefaultMaxPairs
	}
	c := &Collector{
		source:   cfg.Source,
		build:    cfg.Build,
		maxPairs: cfg.MaxPairs,
		byName:   make(map[string]*family, len(families)),
		known:    make(map[pair]*who),
	}
	for _, f := range families {
		next := &family{
			Family:      f,
			c:           c,
			kind:        kinds[f.Type],
			desc:        prometheus.NewDesc(f.Name, f.Help, f.Labels, nil),
			destination: slices.Contains(f.Labels, "destination") || slices.Contains(f.Labels, "from"),
			head:        head(f),
			others:      place{pair: pair{Other, Other}},
		}
		c.families, c.byName[f.Name] = append(c.families, next), next
	}
	slices.SortFunc(c.families, func(a, b *family) int { return cmp.Compare(a.Name, b.Name) })
	for i, f := range c.families {
		f.index = i
	}
	c.nobody, c.late = c.newWho(pair{}), c.newWho(pair{Other, Other})
	return c
}

// kinds are the types as the client library has them.
var kinds = map[Type]dto.MetricType{
	Counter: dto.MetricType_COUNTER, Gauge: dto.MetricType_GAUGE, Histogram: dto.MetricType_HISTOGRAM,
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector. New has a quicker way.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	frame := c.read()
	all, err := frame.families()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for i, f := range all {
		for _, m := range f.Metric {
			ch <- made{frame[i].desc, m}
		}
	}
}

// made is a metric that is ready.
type made struct {
	desc   *prometheus.Desc
	metric *dto.Metric
}

// Desc implements prometheus.Metric.
func (m made) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m made) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge, out.Histogram = m.metric.Label, m.metric.Counter, m.metric.Gauge, m.metric.Histogram
	return nil
}

// read is one scrape. A source that cannot be read costs its families, not the
// scrape.
func (c *Collector) read() frame {
	lanes, tallies := c.source.Lanes(), c.source.Tallies()
	kernel, err := c.source.Kernel()
	reload := c.source.Reload()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scrapes++
	for _, f := range c.families {
		f.live = 0
	}
	c.lanes(lanes)
	c.tallies(tallies)
	dropped := tallies.Dropped
	if err != nil {
		c.errors.Add(1)
	} else {
		c.kernel(kernel)
		dropped += kernel.Dropped
	}
	c.daemon(reload)
	// These two last: what went before may have changed them.
	c.set(NameDropped, float64(dropped+c.missed))
	c.set(NameCollectErrors, float64(c.errors.Load()))
	return c.frame()
}

func (c *Collector) lanes(lanes []Lane) {
	waiting, cooldown := c.byName[NameWaiting], c.byName[NameCooldown]
	rate, budget := c.byName[NameLaneRate], c.byName[NameLaneBudget]
	bound, hosts := c.byName[NameOversendBound], c.byName[NameFleetHosts]
	for i := range lanes {
		l := &lanes[i]
		w := c.who(pair{l.Destination, l.Exit})
		waiting.count(w, float64(l.Waiting))
		cooldown.atLeast(w, max(0, l.Cooldown.Seconds()))
		rate.count(w, l.Rate)
		budget.count(w, l.Budget)
		if f := l.Fleet; f != nil {
			bound.atLeast(w, f.Bound)
			hosts.atLeast(w, float64(f.Hosts))
			c.set(NameFleetLanes, 1, f.Mode)
		}
	}
}

func (c *Collector) tallies(all Tallies) {
	requests, refused := c.byName[NameRequests], c.byName[NameRefused]
	retries, limited, bytes := c.byName[NameRetries], c.byName[NameLimited], c.byName[NameBytes]
	byOutcome, waits := c.byName[NameExitBytes], c.byName[NameWait]
	for i := range all.Pairs {
		t := &all.Pairs[i]
		w := c.who(pair{t.Destination, t.Exit})
		for _, n := range t.Requests {
			requests.count(w, float64(n.N), statusLabel(n.Label))
		}
		refused.counts(w, t.Refused)
		retries.count(w, float64(t.Retried))
		limited.counts(w, t.Limited)
		bytes.count(w, float64(t.Sent), "sent")
		bytes.count(w, float64(t.Received), "received")
		for _, o := range t.Outcomes {
			byOutcome.count(w, float64(o.Sent), "sent", o.Outcome)
			byOutcome.count(w, float64(o.Received), "received", o.Outcome)
		}
		waits.merge(w, t.Wait)
	}

	seconds, lockstep, price := c.byName[NameExitRate], c.byName[NameLockstep], c.byName[NameExitPrice]
	for _, e := range all.Exits {
		w := c.who(pair{exit: e.Exit})
		seconds.merge(w, e.Seconds)
		if e.HasLockstep {
			lockstep.atLeast(w, e.Lockstep)
		}
	}
	for _, p := range all.Prices {
		// The exits that are not shown have no price in common.
		if w := c.who(pair{exit: p.Exit}); price.place(w) != &price.others {
			price.atLeast(w, p.Price)
		}
	}
	switches := c.byName[NameExitSwitches]
	for _, s := range all.Switches {
		switches.count(c.who(pair{s.From, s.To}), float64(s.N), s.Pool)
	}
	c.set(NameExitMismatch, float64(all.ExitMismatches))
	c.set(NameEventsLost, float64(all.EventsLost))
	for _, n := range all.Fleet {
		c.set(NameFleetCalls, float64(n.OK), n.Kind, "answered")
		c.set(NameFleetCalls, float64(n.Failed), n.Kind, "failed")
		c.set(NameFleetCallSeconds, n.Seconds, n.Kind)
	}
	c.tls(all.TLS)
}

func (c *Collector) tls(t TLS) {
	c.byName[NameTLSSight].counts(c.nobody, t.Open)
	c.byName[NameTLSAnswers].counts(c.nobody, t.Answers)
	c.byName[NameTLSDoubts].counts(c.nobody, t.Doubts)
	c.set(NameTLSUnknown, float64(t.Unknown))
	c.set(NameTLSShared, float64(t.Shared))
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

func (c *Collector) kernel(k Kernel) {
	connections, retransmits := c.byName[NameConnections], c.byName[NameRetransmits]
	handshakes, seconds := c.byName[NameHandshakes], c.byName[NameHandshakeSeconds]
	for _, n := range k.Connections {
		w := c.who(pair{n.Destination, n.Exit})
		connections.counts(w, n.Outcomes)
		retransmits.count(w, float64(n.Retransmits))
		handshakes.count(w, float64(n.Handshakes))
		seconds.count(w, n.HandshakeTime.Seconds())
	}
	quic := c.byName[NameQUIC]
	for _, n := range k.QUIC {
		quic.counts(c.who(pair{n.Destination, n.Exit}), n.Outcomes)
	}
	c.byName[NameUntouched].counts(c.nobody, k.Untouched)
	for _, p := range k.Programs {
		c.set(NameProgramSeconds, p.Time.Seconds(), p.Program)
	}
}

func (c *Collector) daemon(reload Reload) {
	c.set(NameBuildInfo, 1, c.build.Version, c.build.Revision, c.build.GoVersion)
	ok := 0.0
	if reload.OK {
		ok = 1
	}
	c.set(NameReloadSuccessful, ok)
	at := 0.0
	if !reload.Last.IsZero() {
		at = float64(reload.Last.UnixMilli()) / 1e3
	}
	c.set(NameReloadTime, at)
}

// set adds v to a series of no pair.
func (c *Collector) set(name string, v float64, labels ...string) {
	c.byName[name].count(c.nobody, v, labels...)
}
