// SPDX-License-Identifier: Apache-2.0

package metrics

import "slices"

// Type is what a family is to Prometheus.
type Type string

// Types.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Family is one metric name and what there is to know of it.
type Family struct {
	Name   string
	Type   Type
	Labels []string
	Unit   string // of its values; of a histogram, of what it counts
	Help   string // one sentence or two, as a scrape shows it
	// Query is an example in PromQL of what the family is good for, and Asks
	// the question that it answers.
	Query, Asks string
}

// Families are all families, in the order in which people read of them. The
// caller owns the slice, not what it holds.
func Families() []Family { return slices.Clone(families) }

// families has every family that a Collector shows.
var families = []Family{
	{
		NameRequests, Counter, []string{"destination", "exit", "code"}, "requests",
		"Requests that were sent, by the status code of the answer; none where there was no answer.",
		`sum by (exit) (rate(egressd_requests_total{code="429"}[5m])) / sum by (exit) (rate(egressd_requests_total[5m]))`,
		"Which share of the requests of each exit is answered with 429?",
	},
	{
		NameRefused, Counter, []string{"destination", "exit", "reason"}, "requests",
		"Requests that egressd answered itself instead of sending them, by reason.",
		`sum by (destination, reason) (increase(egressd_requests_refused_total[1h])) > 0`,
		"What did not go out in the last hour, and why?",
	},
	{
		NameRetries, Counter, []string{"destination", "exit"}, "requests",
		"Requests that egressd sent again because of the answer, which the client did not see.",
		`sum by (destination) (rate(egressd_retries_absorbed_total[5m]))`,
		"How many failures are kept from the clients?",
	},
	{
		NameWait, Histogram, []string{"destination", "exit"}, "seconds",
		"Time that requests waited in the gate before they were sent.",
		`histogram_quantile(0.99, sum by (destination, le) (rate(egressd_request_wait_seconds_bucket[5m])))`,
		"How long do the requests wait that wait longest?",
	},
	{
		NameWaiting, Gauge, []string{"destination", "exit"}, "requests",
		"Requests that wait in the gate now.",
		`topk(5, egressd_requests_waiting)`,
		"Where are the longest queues?",
	},
	{
		NameConnections, Counter, []string{"destination", "exit", "outcome"}, "connections",
		"Attempts to connect, as the kernel saw them, by what became of them: redirected to the proxy, granted at once or held until their turn by the kernel itself, untouched, or refused.",
		`sum by (outcome) (rate(egressd_connections_total{destination!="other"}[5m]))`,
		"Does everything that the policy names go through egressd?",
	},
	{
		NameRetransmits, Counter, []string{"destination", "exit"}, "segments",
		"TCP segments that clients' sockets sent again. Of a redirected connection that is the way to the proxy, on the loopback.",
		`sum by (exit) (rate(egressd_retransmits_total[5m]))`,
		"Which way loses packets?",
	},
	{
		NameHandshakes, Counter, []string{"destination", "exit"}, "connections",
		"TCP handshakes of untouched connections whose time is in egressd_handshake_seconds_total.",
		`sum by (exit) (rate(egressd_handshakes_total[5m]))`,
		"How many connections is the mean time of handshakes of?",
	},
	{
		NameHandshakeSeconds, Counter, []string{"destination", "exit"}, "seconds",
		"Time from SYN to SYN-ACK of untouched connections, as the kernel measured it.",
		`rate(egressd_handshake_seconds_total[5m]) / (rate(egressd_handshakes_total[5m]) > 0)`,
		"How far away are the destinations?",
	},
	{
		NameUntouched, Counter, []string{"reason"}, "connections",
		"Connections that went on untouched, by the gate of the connect hook that let them pass.",
		`sum by (reason) (increase(egressd_untouched_total[1h])) > 0`,
		"Why did connections go past egressd?",
	},
	{
		NameQUIC, Counter, []string{"destination", "exit", "outcome"}, "sockets and peers",
		"UDP sockets and peers at ports that policy names, which is QUIC, by what became of them.",
		`sum by (destination) (increase(egressd_quic_total{outcome="untouched"}[1h])) > 0`,
		"Who gets around the budgets by HTTP/3?",
	},
	{
		NameBytes, Counter, []string{"destination", "exit", "direction"}, "bytes",
		"Payload bytes relayed; direction sent is towards the destination.",
		`sum by (destination, direction) (rate(egressd_bytes_total[5m]))`,
		"How much do clients send to and get from each destination?",
	},
	{
		NameCooldown, Gauge, []string{"destination", "exit"}, "seconds",
		"Time until the lane opens again, the longest of all lanes with these labels; 0 if open.",
		`egressd_cooldown_seconds > 0`,
		"Which lanes are closed, and for how long yet?",
	},
	{
		NameLaneRate, Gauge, []string{"destination", "exit"}, "requests per second",
		"Requests per second that the lanes grant now, summed over lanes with these labels; 0 is no limit.",
		`egressd_lane_rate < egressd_lane_budget`,
		"Which lanes are slowed down by what their origin answered?",
	},
	{
		NameLaneBudget, Gauge, []string{"destination", "exit"}, "requests per second",
		"Requests per second that policy allows the lanes, summed over lanes with these labels; 0 is no limit.",
		`sum without (code) (rate(egressd_requests_total[5m])) / (egressd_lane_budget > 0)`,
		"How much of each budget is used?",
	},
	{
		NameLimited, Counter, []string{"destination", "exit", "kind"}, "answers",
		"Answers by which an origin limited, by kind of verdict.",
		`sum by (exit, kind) (increase(egressd_limited_total[15m])) > 0`,
		"Who was told to slow down, and by whom: the origin, or the exit?",
	},
	{
		NameExitRate, Histogram, []string{"exit"}, "requests within a second",
		"Requests that the exit sent within each second since its first.",
		`histogram_quantile(0.99, sum by (exit, le) (rate(egressd_exit_requests_per_second_bucket[15m])))`,
		"How many requests did the busiest seconds of each exit have?",
	},
	{
		NameLockstep, Gauge, []string{"exit"}, "score from 0 to 1",
		"How far the requests of the exit come in bursts that return after the delay that was last asked, 0 to 1; above 0.6 its clients are in lockstep.",
		`egressd_lockstep_score > 0.6`,
		"Whose clients all come back at once?",
	},
	{
		NameExitBytes, Counter, []string{"destination", "exit", "direction", "outcome"}, "bytes",
		"Bytes to and from the exit as its provider meters them, what opens tunnels included, by what came of the exchange.",
		`sum by (exit) (increase(egressd_exit_bytes_total[30d])) / 1e9`,
		"How many gigabytes will the provider bill for 30 days?",
	},
	{
		NameExitPrice, Gauge, []string{"exit"}, "any currency per 10^9 bytes",
		"Price of 10^9 bytes through the exit, as the policy file has it; exits without a price are not shown.",
		`sum by (exit) (increase(egressd_exit_bytes_total[30d])) / 1e9 * on (exit) group_left () max by (exit) (egressd_exit_price)`,
		"What will 30 days of each exit cost?",
	},
	{
		NameExitSwitches, Counter, []string{"from", "to", "pool"}, "requests",
		"Requests of the pool that left by another exit, as the one whose turn it was is closed.",
		`sum by (pool, from) (increase(egressd_exit_switches_total[1h])) > 0`,
		"Which exits of a pool have to be replaced by others?",
	},
	{
		NameExitMismatch, Counter, nil, "connections",
		"Connections that were reset because they would not have left by the exit that the client's own would have had.",
		`increase(egressd_exit_mismatch_total[1h]) > 0`,
		"Did routes change under connections that were held?",
	},
	{
		NameTLSSight, Gauge, []string{"source"}, "connections",
		"Open TLS connections by how their inside is seen: with keys that the process logs, by uprobes, as TLS ends here (terminate), or not at all (blind).",
		`egressd_tls_sight / ignoring (source) group_left sum without (source) (egressd_tls_sight)`,
		"Which share of the TLS connections is seen, and how?",
	},
	{
		NameTLSAnswers, Counter, []string{"source"}, "answers",
		"Answers that were seen inside TLS connections.",
		`sum by (source) (rate(egressd_tls_answers_total[5m]))`,
		"How many answers are read, and by which way?",
	},
	{
		NameTLSUnknown, Counter, nil, "answers",
		"Answers that uprobes showed and that belong to no connection that is known.",
		`rate(egressd_tls_unknown_answers_total[5m])`,
		"Do processes with probes have connections past egressd?",
	},
	{
		NameTLSDoubts, Counter, []string{"reason"}, "connections",
		"TLS connections that the policy would have looked into and that were not, or not any more, by reason.",
		`sum by (reason) (increase(egressd_tls_doubts_total[1h])) > 0`,
		"Why is the inside of connections not seen?",
	},
	{
		NameTLSShared, Counter, nil, "requests",
		"Requests that left together with another one, as one TLS record held both.",
		`rate(egressd_tls_shared_requests_total[5m])`,
		"How many requests could not be paced one by one?",
	},
	{
		NameOversendBound, Gauge, []string{"destination", "exit"}, "requests",
		"Requests that all hosts of the fleet together may send beyond burst and rate, as the lane comes by its units now; +Inf where nothing bounds them.",
		`max by (destination, exit) (egressd_oversend_bound) > 100`,
		"Where may hosts exceed a budget by much, as it is kept now?",
	},
	{
		NameFleetHosts, Gauge, []string{"destination", "exit"}, "hosts",
		"Hosts that share the lane, as its store told last or as the policy says, if that is more; 0 if nobody knows.",
		`max without (instance) (egressd_fleet_hosts) != min without (instance) (egressd_fleet_hosts)`,
		"Do all hosts know of each other?",
	},
	{
		NameFleetLanes, Gauge, []string{"mode"}, "lanes",
		"Lanes that hosts share, by where their requests come from: from the store (fleet, or returning to it), or without it by share, open or closed.",
		`sum by (mode, instance) (egressd_fleet_lanes{mode!="fleet"}) > 0`,
		"Which hosts have lost the store of the fleet?",
	},
	{
		NameFleetCalls, Counter, []string{"kind", "outcome"}, "calls",
		"Calls to the store of the fleet, by what they are for and whether an answer came in time.",
		`sum (rate(egressd_fleet_calls_total[5m])) / sum (rate(egressd_requests_total[5m]))`,
		"How many calls does a request take?",
	},
	{
		NameFleetCallSeconds, Counter, []string{"kind"}, "seconds",
		"Time that calls to the store of the fleet took.",
		`sum (rate(egressd_fleet_call_seconds_total[5m])) / sum (rate(egressd_fleet_calls_total[5m]))`,
		"How far away is the store?",
	},
	{
		NameProgramSeconds, Counter, []string{"program"}, "seconds",
		"Time that the kernel program has run.",
		`sum by (program) (rate(egressd_program_seconds_total[5m]))`,
		"What do the hooks cost, in cores?",
	},
	{
		NameBuildInfo, Gauge, []string{"version", "revision", "goversion"}, "always 1",
		"1, with the version of the binary in its labels.",
		`count by (version) (egressd_build_info)`,
		"Which versions run?",
	},
	{
		NameReloadSuccessful, Gauge, nil, "1 or 0",
		"Whether the last reading of the policy file succeeded; if not, the one before is in force.",
		`egressd_config_last_reload_successful == 0`,
		"Where is an older policy in force than the one in the file?",
	},
	{
		NameReloadTime, Gauge, nil, "seconds since 1970",
		"When a policy file was last read with success.",
		`time() - egressd_config_last_reload_success_timestamp_seconds`,
		"How old is the policy that is in force, in seconds?",
	},
	{
		NameEventsLost, Counter, nil, "events",
		"Events that are not in the event log, as its disk, the journal or whoever reads it was too slow or took no more.",
		`increase(egressd_events_lost_total[1h]) > 0`,
		"Is the event log complete?",
	},
	{
		NameDropped, Counter, nil, "keys",
		"Keys not counted under their own name because there was no room.",
		`increase(egressd_dropped_keys_total[1h]) > 0`,
		"Are there more destinations or exits than the metrics show?",
	},
	{
		NameCollectErrors, Counter, nil, "errors",
		"Sources that could not be read during scrapes.",
		`increase(egressd_collect_errors_total[1h]) > 0`,
		"Are scrapes complete?",
	},
}
