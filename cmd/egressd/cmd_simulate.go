// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/plot"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
	"github.com/egressd/egressd/userspace/sim"
)

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	workload   string
	config     string
	strategies []string
	host       string
	seed       uint64
	runs       int
	asJSON     bool
	ascii      bool
	list       bool
	show       string
	png        string
}

func newSimulateCommand(e *env) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "play a workload on virtual time, with the policy and without",
		Long: `simulate plays workers against an origin's limits on virtual time: an hour takes
a moment, and nothing is sent. Each strategy of the workload is played from the
same seed; behind egressd it meets the same policy code that the daemon runs.

  egressd simulate --list                            the built-in workloads
  egressd simulate --workload articles/outage        play one
  egressd simulate --show articles/outage > own.yml  make one of your own
  egressd simulate --workload own.yml --config egressd.yml`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.simulate(cmd.Context(), o)
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&o.workload, "workload", "w", "", "workload file, or the name of a built-in one")
	configFlag(cmd, &o.config, "")
	f.StringSliceVar(&o.strategies, "strategy", nil, "strategies to play instead of those of the workload, as in naive,fixed"+sim.Suffix)
	f.StringVar(&o.host, "host", "", "host that the requests go to, instead of that of the workload")
	f.Uint64Var(&o.seed, "seed", 1, "beginning of all that is random")
	f.IntVar(&o.runs, "runs", 0, "repetitions, whose means are printed; 0 as the workload says")
	jsonFlag(cmd, &o.asJSON)
	f.BoolVar(&o.ascii, "ascii", false, "draw with ASCII characters only")
	f.BoolVar(&o.list, "list", false, "list the built-in workloads")
	f.StringVar(&o.show, "show", "", "print the file of a built-in workload")
	f.StringVar(&o.png, "png", "", "draw the charts into this file, too")
	cmd.MarkFlagsMutuallyExclusive("list", "show", "workload")
	cmd.AddCommand(newSimulateFleetCommand(e))
	return cmd
}

// maxSimulateRuns bounds --runs.
const maxSimulateRuns = 1_000_000

func (e *env) simulate(ctx context.Context, o simulateOptions) error {
	switch {
	case o.png != "" && (o.list || o.show != ""):
		return usagef("--png draws what is played, and --list and --show play nothing")
	case o.list:
		return e.listWorkloads(o.asJSON)
	case o.show != "":
		text, ok := sim.BuiltinText(o.show)
		if !ok {
			return usagef("--show %q is none of %s", o.show, strings.Join(sim.Builtins(), ", "))
		}
		_, err := e.stdout.Write(text)
		return err
	case o.workload == "":
		return usagef("simulate needs --workload FILE or the name of a built-in one: %s", strings.Join(sim.Builtins(), ", "))
	case o.runs < 0 || o.runs > maxSimulateRuns:
		return usagef("--runs %d is not from 1 to %d", o.runs, maxSimulateRuns)
	}
	w, err := loadWorkload(o.workload)
	if err != nil {
		return err
	}
	options := sim.Options{Seed: o.seed, Runs: o.runs, Host: strings.ToLower(o.host)}
	for _, name := range o.strategies {
		s, err := sim.ParseStrategy(name, w.Clients.Retry)
		if err != nil {
			return usagef("--strategy: %w", err)
		}
		options.Strategies = append(options.Strategies, s)
	}
	if o.config != "" {
		if options.Policy, err = loadPolicy(o.config); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	result, err := sim.Simulate(ctx, w, options)
	if ctx.Err() != nil {
		return errors.New("simulate was interrupted")
	}
	if err != nil {
		return err
	}
	if o.png != "" {
		if err := writePicture(o.png, func() (*plot.Figure, error) { return simulationFigure(w, result), nil }); err != nil {
			return err
		}
	}
	if o.asJSON {
		return e.printJSON(result)
	}
	text, err := e.formatSimulation(w, result, o.ascii || !e.speaksUTF8())
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(e.stdout, text)
	return err
}

// loadWorkload reads the workload of a name: a built-in one or a file.
func loadWorkload(name string) (*sim.Workload, error) {
	if text, ok := sim.BuiltinText(name); ok {
		return sim.Parse(name, text)
	}
	w, err := sim.Load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no workload file %s: write one, or name a built-in one: %s", name, strings.Join(sim.Builtins(), ", "))
	}
	return w, err
}

// listedWorkload is a line of simulate --list.
type listedWorkload struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
}

func (e *env) listWorkloads(asJSON bool) error {
	var all []listedWorkload
	for _, name := range sim.Builtins() {
		w, err := loadWorkload(name)
		if err != nil {
			return err
		}
		all = append(all, listedWorkload{name, w.Summary})
	}
	if asJSON {
		return e.printJSON(all)
	}
	var rows [][]string
	for _, w := range all {
		rows = append(rows, []string{w.Name, w.Summary})
	}
	return table.Write(e.stdout, e.width(), []table.Column{{Title: "WORKLOAD"}, {Title: "SUMMARY", Flex: true}}, rows)
}

// speaksUTF8 reports whether the locale has more than ASCII.
func (e *env) speaksUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := e.getenv(name); locale != "" {
			locale = strings.ToLower(locale)
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}

// formatSimulation is a result for people: two tables, and a chart for each
// strategy, all on one scale.
func (e *env) formatSimulation(w *sim.Workload, r *sim.Result, ascii bool) (string, error) {
	var out strings.Builder
	if w.Summary != "" {
		fmt.Fprintf(&out, "%s: %s\n", w.Name, w.Summary)
	}
	fmt.Fprintf(&out, "%s of virtual time, seed %d", w.Title(), r.Seed)
	if r.Runs > 1 {
		fmt.Fprintf(&out, ", means of %d runs", r.Runs)
	}
	out.WriteString("\n\n")
	if err := writeCounts(&out, e.width(), r); err != nil {
		return "", err
	}
	out.WriteString("\n")
	if err := writeWaits(&out, e.width(), r); err != nil {
		return "", err
	}
	style := sim.ChartStyle{Width: e.width(), Top: r.Top(), ASCII: ascii}
	if style.Width == 0 {
		style.Width = 80
	}
	fmt.Fprintf(&out, "\nRequests sent per second (%s):\n", style.Legend())
	for i := range r.Strategies {
		f := &r.Strategies[i]
		fmt.Fprintf(&out, "\n%s\n%s", f.Strategy, f.Chart(style))
	}
	return out.String(), nil
}

// writeCounts is the table of what became of requests and jobs.
func writeCounts(out *strings.Builder, width int, r *sim.Result) error {
	columns := []table.Column{
		{Title: "STRATEGY", Flex: true},
		{Title: "SENT", Right: true}, {Title: "OK", Right: true}, {Title: "LIMITED", Right: true},
		{Title: "ERRORS", Right: true}, {Title: "REFUSED", Right: true}, {Title: "JOBS LOST", Right: true},
	}
	repeats := slices.ContainsFunc(r.Strategies, func(f sim.Figures) bool { return f.Repeated > 0 })
	if repeats {
		columns = append(columns, table.Column{Title: "REPEATED", Right: true})
	}
	var rows [][]string
	for _, f := range r.Strategies {
		row := []string{f.Strategy}
		for _, x := range []float64{f.Sent, f.OK, f.Limited, f.Errors, f.Refused, f.Lost, f.Repeated} {
			row = append(row, formatMean(x, r.Runs))
		}
		rows = append(rows, row[:len(columns)])
	}
	return table.Write(out, width, columns, rows)
}

// writeWaits is the table of waits and peaks.
func writeWaits(out *strings.Builder, width int, r *sim.Result) error {
	columns := []table.Column{
		{Title: "STRATEGY", Flex: true},
		{Title: "WAIT P50", Right: true}, {Title: "P99", Right: true}, {Title: "MAX", Right: true},
		{Title: "BUSIEST 1s", Right: true}, {Title: "100ms", Right: true},
	}
	if r.Runs > 1 {
		columns = append(columns, table.Column{Title: "NO TWO", Right: true})
	}
	var rows [][]string
	for _, f := range r.Strategies {
		row := []string{
			f.Strategy, formatWait(f, f.Wait.P50), formatWait(f, f.Wait.P99), formatWait(f, f.Wait.Max),
			formatMean(f.BusiestSecond, r.Runs), formatMean(f.Busiest100ms, r.Runs),
		}
		if r.Runs > 1 {
			row = append(row, strconv.FormatFloat(100*f.Alone, 'f', 0, 64)+"%")
		}
		rows = append(rows, row)
	}
	if err := table.Write(out, width, columns, rows); err != nil {
		return err
	}
	if r.Runs > 1 {
		out.WriteString("\nNO TWO is the share of runs in which no 100 ms had two requests.\n")
	}
	return nil
}

// formatMean is a count, or the mean of several.
func formatMean(x float64, runs int) string {
	if runs == 1 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 1, 64)
}

// formatWait is a wait of jobs that succeeded, to three digits.
func formatWait(f sim.Figures, ms float64) string {
	if f.Done == 0 {
		return "-"
	}
	d := time.Duration(math.Round(ms * float64(time.Millisecond)))
	for unit := 10 * time.Millisecond; unit < d/100; unit *= 10 {
		if d >= time.Minute {
			return d.Round(time.Second).String()
		}
		d = d.Round(unit)
	}
	return d.Round(time.Millisecond).String()
}

// simulationFigure draws a result: one panel for each strategy, all on one scale.
func simulationFigure(w *sim.Workload, r *sim.Result) *plot.Figure {
	f := &plot.Figure{
		Title: w.Name,
		Notes: []string{fmt.Sprintf("Requests sent in each second; %s of virtual time, seed %d", w.Title(), r.Seed)},
		Legend: []plot.Key{
			{Name: "served", Colour: plot.Served}, {Name: "limited", Colour: plot.Limited}, {Name: "error", Colour: plot.Failed},
		},
	}
	if w.Summary != "" {
		f.Notes = append([]string{w.Summary}, f.Notes...)
	}
	if r.Runs > 1 {
		f.Notes[len(f.Notes)-1] += fmt.Sprintf(", means of %d runs", r.Runs)
	}
	for i := range r.Strategies {
		s := &r.Strategies[i]
		panel := plot.Panel{YName: "requests", XName: "seconds", XMax: float64(len(s.Series.OK)) * s.Series.StepMS / 1e3}
		for k := range s.Series.OK {
			panel.Bars = append(panel.Bars, plot.Bar{
				{N: s.Series.OK[k], Colour: plot.Served}, {N: s.Series.Limited[k], Colour: plot.Limited}, {N: s.Series.Errors[k], Colour: plot.Failed},
			})
		}
		f.Rows = append(f.Rows, plot.Row{
			Title: s.Strategy, Height: 170, Panels: []plot.Panel{panel},
			Note: fmt.Sprintf("%s sent, %s limited, busiest second %s", formatMean(s.Sent, r.Runs), formatMean(s.Limited, r.Runs), formatMean(s.BusiestSecond, r.Runs)),
		})
	}
	return f
}
