// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/table"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/userspace/fleetsim"
)

// simulateFleetOptions are the flags of simulate fleet.
type simulateFleetOptions struct {
	fleetsim.Options
	rate       string
	burst      uint64
	onLoss     string
	lost       string
	partitions []string
	restarts   []string
	asJSON     bool
}

func newSimulateFleetCommand(e *env) *cobra.Command {
	o := simulateFleetOptions{Options: fleetsim.Options{Known: true}}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "play hosts that share one budget through a store",
		Long: `fleet plays hosts that hold one budget together through a store, on virtual
time. On each host runs the code of the daemon; store and network are models.
It shows what all hosts sent against the budget and the bound that is stated
for it, what that cost in calls to the store, and how long a cooldown took to
reach every host.

  egressd simulate fleet --hosts 8 --rate 20/s
  egressd simulate fleet --hosts 8 --rate 5000/s --latency 5ms --loss 1%
  egressd simulate fleet --partition 20s+10s/25% --restart 40s+1s/empty
  egressd simulate fleet --hosts 10000 --rate 1000/s --skew 1h`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.simulateFleet(cmd.Context(), o)
		}),
	}
	f := cmd.Flags()
	f.IntVar(&o.Hosts, "hosts", 8, "hosts that share the budget, up to "+strconv.Itoa(fleetsim.MaxHosts))
	f.StringVar(&o.rate, "rate", "20/s", "rate of the budget")
	f.Uint64Var(&o.burst, "burst", 1, "burst of the budget")
	f.Float64Var(&o.Load, "load", 0, "what all hosts want, in multiples of the rate; 0 is an endless backlog on each")
	f.DurationVar(&o.Waves, "waves", 0, "period of a load that comes in waves: nothing comes in the second half of each")
	f.StringVar(&o.onLoss, "on-loss", "share", "what hosts do without the store: share, closed or open")
	f.DurationVar(&o.Latency, "latency", time.Millisecond, "of a message to the store or back, half of it random")
	f.DurationVar(&o.Skew, "skew", 0, "clocks of hosts differ from the true time by up to this")
	f.StringVar(&o.lost, "loss", "0%", "share of the messages that are lost")
	f.DurationVar(&o.Arrive, "arrive", 0, "time over which hosts come, one after the other; their number is then not configured")
	f.StringArrayVar(&o.partitions, "partition", nil, "AT+FOR/SHARE: hosts that do not reach the store, as in 20s+10s/25%; may be given again")
	f.StringArrayVar(&o.restarts, "restart", nil,
		"AT+FOR/MEMORY: the store is down and comes back with its data kept, empty, or lag=200ms behind; may be given again")
	f.DurationVar(&o.Duration, "duration", time.Minute, "of virtual time")
	f.Uint64Var(&o.Seed, "seed", 1, "beginning of all that is random")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (e *env) simulateFleet(ctx context.Context, o simulateFleetOptions) error {
	b, err := config.ParseLimit("simulated=" + o.rate)
	if err != nil || b.Auto || strings.Contains(o.rate, ",") {
		return usagef("--rate %q is no rate; write it with a unit, as in 20/s, 90/min or 5000/h", o.rate)
	}
	o.Limit = fleet.Limit{Interval: b.Rate.Interval(), Burst: o.burst}
	if o.Loss, err = fleet.ParseLoss(o.onLoss); err != nil {
		return usagef("--on-loss %w", err)
	}
	var ok bool
	if o.Lost, ok = fleetsim.ParseShare(o.lost); !ok {
		return usagef("--loss %q is no share; write it as 5%% or 0.05", o.lost)
	}
	for _, text := range o.partitions {
		c, err := fleetsim.ParseCut(text)
		if err != nil {
			return usagef("--%w", err)
		}
		o.Cuts = append(o.Cuts, c)
	}
	for _, text := range o.restarts {
		f, err := fleetsim.ParseFault(text)
		if err != nil {
			return usagef("--%w", err)
		}
		o.Faults = append(o.Faults, f)
	}
	slices.SortFunc(o.Faults, func(a, b fleetsim.Fault) int { return int(a.At - b.At) })
	o.Known = o.Arrive == 0
	if err := o.Check(); err != nil {
		return usagef("--%w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	result, err := fleetsim.Simulate(ctx, o.Options)
	if ctx.Err() != nil {
		return errors.New("simulate fleet was interrupted")
	}
	if err != nil {
		return err
	}
	if o.asJSON {
		return e.printJSON(result)
	}
	text, err := formatFleet(&o.Options, result, e.width())
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(e.stdout, text)
	return err
}

// formatFleet is a result for people.
func formatFleet(o *fleetsim.Options, r *fleetsim.Result, width int) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %s at %s/s, burst %d: %s; %v of virtual time, seed %d\n\n",
		r.Hosts, plural(uint64(r.Hosts), "host", "hosts"), number(r.Rate), r.Burst, r.Scheme, o.Duration, r.Seed)
	var rows [][]string
	for _, w := range r.Windows {
		rows = append(rows, []string{
			(time.Duration(w.LengthMS) * time.Millisecond).String(), strconv.Itoa(w.Sent), number(w.Limit), number(float64(w.Sent) - w.Limit),
		})
	}
	columns := []table.Column{
		{Title: "BUSIEST"}, {Title: "SENT", Right: true}, {Title: "BURST + RATE·τ", Right: true}, {Title: "OVER", Right: true},
	}
	if err := table.Write(&out, width, columns, rows); err != nil {
		return "", err
	}
	bound := "without bound, as --on-loss open says"
	if r.Bound != nil {
		bound = "bound " + number(*r.Bound)
		if !r.Within {
			bound += " EXCEEDED"
		}
	}
	calls := make([]string, 0, len(r.Calls))
	for _, k := range []fleet.Kind{fleet.Book, fleet.Lease, fleet.Give, fleet.Close, fleet.Reward, fleet.Watch} {
		if n := r.Calls[k.String()]; n > 0 {
			calls = append(calls, fmt.Sprintf("%s %d", k, n))
		}
	}
	lines := [][2]string{
		{"over in any window", fmt.Sprintf("%s at most, %s", number(max(0, r.Excess)), bound)},
		{"budget used", strconv.FormatFloat(100*r.Used, 'f', 1, 64) + "%"},
		{"sent by a host", fmt.Sprintf("%d to %d", r.Least, r.Most)},
		{"calls a request", fmt.Sprintf("%s (%s; %d failed)", number(r.CallsEach), strings.Join(calls, ", "), r.Failed)},
		{"units", fmt.Sprintf("%d expired, %d void, %d given back", r.Expired, r.Void, r.Given)},
	}
	if r.Alone > 0 {
		alone := fmt.Sprintf("%d sent", r.Alone)
		if o.Loss == fleet.LossShare && len(o.Cuts) > 0 {
			alone += "; where others had the store meanwhile, that was allowed beside the rate"
		}
		lines = append(lines, [2]string{"without the store", alone})
	}
	if o.Load > 0 {
		lines = append(lines, [2]string{"wait", fmt.Sprintf("p50 %s ms, p99 %s ms, %d refused", number(r.WaitP50), number(r.WaitP99), r.Refused)})
	}
	c := r.Cooldown
	last := "all after " + number(c.All) + " ms"
	if c.Missed > 0 {
		last = fmt.Sprintf("the last after %s ms, %d never", number(c.All), c.Missed)
	}
	cooldown := fmt.Sprintf("half of the hosts after %s ms, %s; %d sent meanwhile", number(c.Half), last, c.Sent)
	lines = append(lines, [2]string{"cooldown reached", cooldown})
	out.WriteString("\n")
	for _, l := range lines {
		fmt.Fprintf(&out, "%-20s%s\n", l[0], l[1])
	}
	return out.String(), nil
}

// number writes x to three digits where it has more after the point.
func number(x float64) string {
	if math.Abs(x) >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
