// SPDX-License-Identifier: Apache-2.0

package dashboard

// What selects the series of the chosen hosts, exits and destinations. Lanes
// of budgets that do not tell exits apart have the exit all.
const (
	onHost = `instance=~"$instance"`
	ofExit = onHost + `,exit=~"$exit"`
	ofPair = ofExit + `,destination=~"$destination"`
	ofLane = onHost + `,exit=~"$exit|all",destination=~"$destination"`
)

// Rows is what the dashboard shows, from top to bottom.
func Rows() []Row {
	return []Row{
		{Title: "Exits", Panels: exitPanels()},
		{Title: "Waiting", Panels: waitPanels()},
		{Title: "Within one second", Panels: secondPanels()},
		{Title: "Exit $exit", Each: varExit, Panels: oneExitPanels()},
		{Title: "Bytes and cost", Panels: bytePanels()},
		{Title: "Connections", Panels: connectionPanels()},
		{Title: "TLS", Panels: tlsPanels()},
		{Title: "Fleet", Panels: fleetPanels()},
		{Title: "egressd", Panels: daemonPanels()},
	}
}

func exitPanels() []Panel {
	return []Panel{
		{
			Title: "Requests per second, and budgets", Kind: Lines, Unit: "reqps", Width: 16,
			About: "What each exit sends, beside what the policy allows it (long dashes: budget) and what its lanes grant now: less than the budget after an origin limited. " +
				"Budgets of all destinations shown are added up; `all` are those that do not tell exits apart.",
			Queries: []Query{
				{Expr: `sum by (exit) (rate(egressd_requests_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{exit}}"},
				{Expr: `sum by (exit) (egressd_lane_budget{` + ofLane + `}) > 0`, Legend: "{{exit}} budget", Faint: true},
				{Expr: `sum by (exit) (egressd_lane_rate{` + ofLane + `}) > 0`, Legend: "{{exit}} granted", Faint: true},
			},
		},
		{
			Title: "Answered with 429", Kind: Lines, Unit: "percentunit", Width: 8,
			About: "The share of the requests of each exit that the origin answered with 429. Behind a budget that fits it is 0.",
			Queries: []Query{{
				Expr: `(sum by (exit) (rate(egressd_requests_total{` + ofPair + `,code="429"}[$__rate_interval]))` +
					` or 0 * sum by (exit) (rate(egressd_requests_total{` + ofPair + `}[$__rate_interval])))` +
					` / (sum by (exit) (rate(egressd_requests_total{` + ofPair + `}[$__rate_interval])) > 0)`,
				Legend: "{{exit}}",
			}},
		},
		{
			Title: "Cooldowns", Kind: Bands, Unit: "short", Width: 16,
			About: "When the lanes were closed. Lanes that were open all the time are left out.",
			Queries: []Query{{
				Expr: `(max by (destination, exit) (egressd_cooldown_seconds{` + ofLane + `}) > bool 0)` +
					` and max by (destination, exit) (max_over_time(egressd_cooldown_seconds{` + ofLane + `}[$__range])) > 0`,
				Legend: "{{destination}} by {{exit}}",
			}},
		},
		{
			Title: "Answers that limit", Kind: Stacked, Unit: "reqps", Width: 8,
			About:   "What origins and exits said: limited (this exit sends too much), capacity (trouble of the origin itself), challenge (a block for browsers), exit-trouble (the exit's provider).",
			Queries: []Query{{Expr: `sum by (kind) (rate(egressd_limited_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{kind}}"}},
		},
		{
			Title: "Lockstep", Kind: Lines, Unit: "short", Width: 12, Mark: 0.6,
			About:   "How far the requests of an exit come in bursts that return after the delay that was last asked for. Above the mark its clients are in lockstep. There is no score where no delay was asked for.",
			Queries: []Query{{Expr: `max by (exit) (egressd_lockstep_score{` + ofExit + `})`, Legend: "{{exit}}"}},
		},
		{
			Title: "Requests that changed their exit", Kind: Lines, Unit: "reqps", Width: 12,
			About: "Requests of pools that left by another exit than the one whose turn it was; and connections that were reset because their own exit was gone.",
			Queries: []Query{
				{Expr: `sum by (pool, from, to) (rate(egressd_exit_switches_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{pool}}: {{from}} to {{to}}"},
				{Expr: `sum(rate(egressd_exit_mismatch_total{` + onHost + `}[$__rate_interval]))`, Legend: "reset", Faint: true},
			},
		},
	}
}

func waitPanels() []Panel {
	return []Panel{
		{
			Title: "Time in the gate", Kind: Heatmap, Unit: "s", Width: 12,
			About:   "How long requests were held before they were sent.",
			Queries: []Query{{Expr: `sum by (le) (increase(egressd_request_wait_seconds_bucket{` + ofPair + `}[$__rate_interval]))`, Legend: "{{le}}"}},
		},
		{
			Title: "Waiting now", Kind: Stacked, Unit: "short", Width: 6,
			About:   "Requests in the gate, by destination.",
			Queries: []Query{{Expr: `sum by (destination) (egressd_requests_waiting{` + ofLane + `})`, Legend: "{{destination}}"}},
		},
		{
			Title: "Answered by egressd", Kind: Stacked, Unit: "reqps", Width: 6,
			About: "Requests that were not sent but refused here, by reason; and answers that the client did not see as the request was sent again.",
			Queries: []Query{
				{Expr: `sum by (reason) (rate(egressd_requests_refused_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{reason}}"},
				{Expr: `sum(rate(egressd_retries_absorbed_total{` + ofPair + `}[$__rate_interval]))`, Legend: "sent again", Faint: true},
			},
		},
	}
}

// seconds are the distributions of requests within one second, of the exits
// chosen.
var seconds = []Query{
	{Expr: `sum by (le) (increase(egressd_exit_requests_per_second_bucket{` + ofExit + `}[$__rate_interval]))`, Legend: "{{le}}", Store: ClassicOnly},
	{Expr: `sum(increase(egressd_exit_requests_per_second{` + ofExit + `}[$__rate_interval]))`, Legend: "requests", Store: NativeOnly},
}

func secondPanels() []Panel {
	return []Panel{
		{
			Title: "Requests within one second", Kind: Heatmap, Unit: "short", Width: 12,
			About:   "How many seconds had how many requests, over all exits chosen. A budget that works shows as a ceiling; clients in lockstep as two bands, empty seconds and full ones.",
			Queries: seconds,
		},
		{
			Title: "Busiest and usual seconds of each exit", Kind: Lines, Unit: "short", Width: 12,
			About: "The number of requests that 99 % of the seconds stay below, and (dashes) the median. The nearer they are, the evener the exit sends.",
			Queries: []Query{
				{Expr: `histogram_quantile(0.99, sum by (exit, le) (rate(egressd_exit_requests_per_second_bucket{` + ofExit + `}[$__rate_interval])))`, Legend: "{{exit}}", Store: ClassicOnly},
				{Expr: `histogram_quantile(0.5, sum by (exit, le) (rate(egressd_exit_requests_per_second_bucket{` + ofExit + `}[$__rate_interval])))`, Legend: "{{exit}} median", Store: ClassicOnly, Faint: true},
				{Expr: `histogram_quantile(0.99, sum by (exit) (rate(egressd_exit_requests_per_second{` + ofExit + `}[$__rate_interval])))`, Legend: "{{exit}}", Store: NativeOnly},
				{Expr: `histogram_quantile(0.5, sum by (exit) (rate(egressd_exit_requests_per_second{` + ofExit + `}[$__rate_interval])))`, Legend: "{{exit}} median", Store: NativeOnly, Faint: true},
			},
		},
	}
}

func oneExitPanels() []Panel {
	return []Panel{
		{
			Title: "Requests within one second by $exit", Kind: Heatmap, Unit: "short", Width: 12,
			About:   "How many seconds had how many requests: a ceiling, or a sawtooth.",
			Queries: seconds,
		},
		{
			Title: "Answers to $exit", Kind: Stacked, Unit: "reqps", Width: 12,
			About:   "By status code; none where there was no answer.",
			Queries: []Query{{Expr: `sum by (code) (rate(egressd_requests_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{code}}"}},
		},
	}
}

func bytePanels() []Panel {
	return []Panel{
		{
			Title: "Bytes by exit", Kind: Lines, Unit: "Bps", Width: 8,
			About:   "Both ways, as the provider of the exit meters them: of the TCP payload, with what it took to open tunnels.",
			Queries: []Query{{Expr: `sum by (exit, direction) (rate(egressd_exit_bytes_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{exit}} {{direction}}"}},
		},
		{
			Title: "Bytes by outcome", Kind: Stacked, Unit: "Bps", Width: 8,
			About:   "What came of the bytes. All but useful is waste; unseen is the inside of tunnels, which nobody here reads.",
			Queries: []Query{{Expr: `sum by (outcome) (rate(egressd_exit_bytes_total{` + ofPair + `}[$__rate_interval]))`, Legend: "{{outcome}}"}},
		},
		{
			Title: "Cost of the time shown", Kind: Bars, Unit: "short", Width: 8,
			About: "All bytes both ways, by the price of 10^9 bytes that the policy has for the exit or, where it has none, by the one set at the top.",
			Queries: []Query{{
				Expr: `sum by (exit) (sum by (instance, exit) (increase(egressd_exit_bytes_total{` + ofPair + `}[$__range])) / 1e9` +
					` * on (instance, exit) (max by (instance, exit) (last_over_time(egressd_exit_price{` + ofExit + `}[$__range]))` +
					` or 0 * max by (instance, exit) (last_over_time(egressd_exit_bytes_total{` + ofPair + `}[$__range])) + $price))`,
				Legend: "{{exit}}",
			}},
		},
		{
			Title: "Top destinations by requests", Kind: Bars, Unit: "short", Width: 8,
			About:   "In the time shown.",
			Queries: []Query{{Expr: `topk(10, sum by (destination) (increase(egressd_requests_total{` + ofPair + `}[$__range])))`, Legend: "{{destination}}"}},
		},
		{
			Title: "Top destinations by bytes", Kind: Bars, Unit: "decbytes", Width: 8,
			About:   "In the time shown: what was relayed for clients, both ways.",
			Queries: []Query{{Expr: `topk(10, sum by (destination) (increase(egressd_bytes_total{` + ofPair + `}[$__range])))`, Legend: "{{destination}}"}},
		},
		{
			Title: "Top destinations by answers that limit", Kind: Bars, Unit: "short", Width: 8,
			About:   "In the time shown.",
			Queries: []Query{{Expr: `topk(10, sum by (destination) (increase(egressd_limited_total{` + ofPair + `}[$__range])))`, Legend: "{{destination}}"}},
		},
	}
}

func connectionPanels() []Panel {
	return []Panel{
		{
			Title: "What became of connections", Kind: Stacked, Unit: "cps", Width: 8,
			About: "As the kernel counts them: redirected to the proxy; granted at once or held until their turn by the kernel, which then were not redirected; " +
				"untouched; refused. Connections to addresses that showed no name yet count for the destination `other`.",
			Queries: []Query{{Expr: `sum by (outcome) (rate(egressd_connections_total{` + onHost + `,destination=~"$destination|other"}[$__rate_interval]))`, Legend: "{{outcome}}"}},
		},
		{
			Title: "Untouched, by reason", Kind: Stacked, Unit: "cps", Width: 8,
			About:   "By the gate of the connect hook that let the connection pass. heartbeat means that the daemon did not accept in time.",
			Queries: []Query{{Expr: `sum by (reason) (rate(egressd_untouched_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{reason}}"}},
		},
		{
			Title: "QUIC", Kind: Stacked, Unit: "cps", Width: 8,
			About:   "UDP to ports that the policy names: HTTP/3 gets around budgets where it is not refused.",
			Queries: []Query{{Expr: `sum by (outcome) (rate(egressd_quic_total{` + onHost + `,destination=~"$destination|other"}[$__rate_interval]))`, Legend: "{{outcome}}"}},
		},
		{
			Title: "Segments sent again", Kind: Lines, Unit: "pps", Width: 12,
			About:   "Of clients' sockets. Of redirected connections that is the way to the proxy, on the loopback.",
			Queries: []Query{{Expr: `sum by (exit) (rate(egressd_retransmits_total{` + ofExit + `}[$__rate_interval]))`, Legend: "{{exit}}"}},
		},
		{
			Title: "Mean time of a handshake", Kind: Lines, Unit: "s", Width: 12,
			About: "From SYN to SYN-ACK, of untouched connections.",
			Queries: []Query{{
				Expr: `sum by (exit) (rate(egressd_handshake_seconds_total{` + ofExit + `}[$__rate_interval]))` +
					` / (sum by (exit) (rate(egressd_handshakes_total{` + ofExit + `}[$__rate_interval])) > 0)`,
				Legend: "{{exit}}",
			}},
		},
	}
}

func tlsPanels() []Panel {
	return []Panel{
		{
			Title: "How TLS connections are seen", Kind: Stacked, Unit: "short", Width: 8,
			About:   "Open connections: read with the keys of their process, shown by uprobes, ended here (terminate), or blind, which are paced by flights.",
			Queries: []Query{{Expr: `sum by (source) (egressd_tls_sight{` + onHost + `})`, Legend: "{{source}}"}},
		},
		{
			Title: "Not seen, by reason", Kind: Stacked, Unit: "cps", Width: 8,
			About:   "Connections that the policy would have looked into and that were not, or not any more.",
			Queries: []Query{{Expr: `sum by (reason) (rate(egressd_tls_doubts_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{reason}}"}},
		},
		{
			Title: "Answers seen inside TLS", Kind: Lines, Unit: "reqps", Width: 8,
			About: "By way of seeing; those that belong to no known connection; and requests that left together as one record held both.",
			Queries: []Query{
				{Expr: `sum by (source) (rate(egressd_tls_answers_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{source}}"},
				{Expr: `sum(rate(egressd_tls_unknown_answers_total{` + onHost + `}[$__rate_interval]))`, Legend: "of no known connection", Faint: true},
				{Expr: `sum(rate(egressd_tls_shared_requests_total{` + onHost + `}[$__rate_interval]))`, Legend: "requests that shared a record", Faint: true},
			},
		},
	}
}

func fleetPanels() []Panel {
	return []Panel{
		{
			Title: "Shared lanes, by where their requests come from", Kind: Stacked, Unit: "short", Width: 8,
			About:   "fleet: from the store that the hosts share. Without it: share, a part of the rate; closed, nothing; open, all of it on each host; returning: it is back, and the host keeps to its share for a moment.",
			Queries: []Query{{Expr: `sum by (mode) (egressd_fleet_lanes{` + onHost + `})`, Legend: "{{mode}}"}},
		},
		{
			Title: "Hosts, and what they may exceed", Kind: Lines, Unit: "short", Width: 8,
			About: "Hosts that share each lane, and the requests that all of them together may send beyond burst and rate.",
			Queries: []Query{
				{Expr: `max by (destination, exit) (egressd_oversend_bound{` + ofLane + `})`, Legend: "{{destination}} {{exit}} beyond"},
				{Expr: `max by (destination, exit) (egressd_fleet_hosts{` + ofLane + `})`, Legend: "{{destination}} {{exit}} hosts", Faint: true},
			},
		},
		{
			Title: "Calls to the store, and their mean time", Kind: Lines, Unit: "short", Width: 8,
			About: "Calls per second by kind; those that brought no answer in time; and milliseconds that a call takes.",
			Queries: []Query{
				{Expr: `sum by (kind) (rate(egressd_fleet_calls_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{kind}}/s"},
				{Expr: `sum(rate(egressd_fleet_calls_total{` + onHost + `,outcome="failed"}[$__rate_interval]))`, Legend: "failed/s"},
				{
					Expr: `1000 * sum(rate(egressd_fleet_call_seconds_total{` + onHost + `}[$__rate_interval]))` +
						` / (sum(rate(egressd_fleet_calls_total{` + onHost + `}[$__rate_interval])) > 0)`,
					Legend: "ms a call", Faint: true,
				},
			},
		},
	}
}

func daemonPanels() []Panel {
	return []Panel{
		{
			Title: "Kernel programs", Kind: Stacked, Unit: "percentunit", Width: 8,
			About:   "Time of one core that the hooks take; empty where the kernel keeps no run times.",
			Queries: []Query{{Expr: `sum by (program) (rate(egressd_program_seconds_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{program}}"}},
		},
		{
			Title: "Age of the policy", Kind: Lines, Unit: "s", Width: 8,
			About: "Since a policy file was last read with success; and 1 for hosts whose last reading failed.",
			Queries: []Query{
				{Expr: `time() - egressd_config_last_reload_success_timestamp_seconds{` + onHost + `}`, Legend: "{{instance}}"},
				{Expr: `1 - egressd_config_last_reload_successful{` + onHost + `}`, Legend: "{{instance}} failed", Faint: true},
			},
		},
		{
			Title: "Not counted", Kind: Lines, Unit: "short", Width: 8,
			About: "Keys without room for a name of their own, sources that could not be read during scrapes, and events that the event log could not take. All should be 0.",
			Queries: []Query{
				{Expr: `sum by (instance) (increase(egressd_dropped_keys_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{instance}} keys"},
				{Expr: `sum by (instance) (increase(egressd_collect_errors_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{instance}} errors"},
				{Expr: `sum by (instance) (increase(egressd_events_lost_total{` + onHost + `}[$__rate_interval]))`, Legend: "{{instance}} events"},
			},
		},
	}
}
