// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
	"github.com/egressd/egressd/policy"
)

// exitsOptions are the flags of exits.
type exitsOptions struct {
	socket string
	json   bool
	csv    bool
	since  string
}

func newExitsCommand(e *env) *cobra.Command {
	var o exitsOptions
	cmd := &cobra.Command{
		Use:   "exits",
		Short: "list the exits: what went through them, what of it was waste, and what it costs",
		Long: `exits lists what origins saw of this host: for each exit its requests and
connections, the share of answers 429, what is closed, the bytes both ways as the
provider of the exit meters them, the share of them that was not useful, and what
they cost by the prices of the policy file. A lockstep score above 0.6 says that
the clients of the exit come back all at once when a limit ends.

Counts are since the daemon started, or of the last time that --since names, at
most 24h; the daemon remembers them by the minute. --csv has a row for each exit
and destination.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			if o.csv && o.json {
				return usagef("--csv and --json exclude each other")
			}
			var since time.Duration
			if o.since != "" {
				var err error
				if since, err = admin.ParseSince(o.since); err != nil {
					return usagef("--since: %w", err)
				}
			}
			return e.exits(cmd.Context(), admin.NewClient(o.socket), o, since)
		}),
	}
	jsonFlag(cmd, &o.json)
	cmd.Flags().BoolVar(&o.csv, "csv", false, "print CSV, a row for each exit and destination")
	cmd.Flags().StringVar(&o.since, "since", "", "count only the last time, as in 15m or 1h")
	socketFlag(cmd, &o.socket)
	return cmd
}

func (e *env) exits(ctx context.Context, client *admin.Client, o exitsOptions, since time.Duration) error {
	exits, err := client.Exits(ctx, since)
	switch {
	case err != nil:
		return err
	case o.json:
		return e.printJSON(exits)
	case o.csv:
		return writeExitsCSV(e.stdout, exits)
	}
	rows := make([][]string, len(exits.Exits))
	for i, x := range exits.Exits {
		rows[i] = exitRow(&x)
	}
	err = table.Write(e.stdout, e.width(), []table.Column{
		{Title: "EXIT", Flex: true},
		{Title: "REQUESTS", Right: true},
		{Title: "NOW", Right: true},
		{Title: "429S", Right: true},
		{Title: "CONNECTIONS", Flex: true},
		{Title: "CLOSED", Flex: true},
		{Title: "SENT", Right: true},
		{Title: "RECEIVED", Right: true},
		{Title: "WASTE", Right: true},
		{Title: "COST", Right: true},
		{Title: "LOCKSTEP"},
	}, rows)
	if err != nil || since == 0 {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "counted since %s\n", exits.From.Local().Format(time.DateTime))
	return err
}

func exitRow(x *admin.Exit) []string {
	total := x.Total()
	row := []string{
		x.Exit, strconv.FormatUint(x.Requests, 10), "-", "-", formatConnections(x.Connections), "-",
		formatBytes(total.Sent), formatBytes(total.Received), "-", "-", "-",
	}
	if x.PerSecond > 0 {
		row[2] = formatRate(x.PerSecond)
	}
	if x.Requests > 0 {
		row[3] = formatShare(float64(x.TooMany) / float64(x.Requests))
	}
	if x.Closed > 0 {
		row[5] = fmt.Sprintf("%s, %s", count(x.Closed, "lane"), age(seconds(x.ClosedFor)))
	}
	if x.Waste != nil {
		row[8] = formatShare(*x.Waste)
	}
	if x.Cost != nil {
		row[9] = strconv.FormatFloat(*x.Cost, 'f', 2, 64)
	}
	if x.Lockstep != nil {
		row[10] = formatLockstep(*x.Lockstep)
	}
	return row
}

// formatConnections is the number of connections, and how many of them did not
// go through the proxy.
func formatConnections(c admin.Connections) string {
	var but []string
	if c.Untouched > 0 {
		but = append(but, fmt.Sprintf("%d untouched", c.Untouched))
	}
	if c.Refused > 0 {
		but = append(but, fmt.Sprintf("%d refused", c.Refused))
	}
	if len(but) == 0 {
		return strconv.FormatUint(c.All(), 10)
	}
	return fmt.Sprintf("%d (%s)", c.All(), strings.Join(but, ", "))
}

// formatShare writes a share in percent. What is not zero does not look so.
func formatShare(x float64) string {
	switch percent := 100 * x; {
	case percent > 0 && percent < 0.1:
		return "<0.1%"
	case percent > 99.9 && percent < 100:
		return ">99.9%"
	case percent == 0 || percent >= 9.95:
		return strconv.FormatFloat(percent, 'f', 0, 64) + "%"
	default:
		return strconv.FormatFloat(percent, 'f', 1, 64) + "%"
	}
}

func formatLockstep(score float64) string {
	word := ""
	switch {
	case score > policy.FullLockstep:
		word = " lockstep"
	case score >= policy.SomeLockstep:
		word = " some"
	}
	return strconv.FormatFloat(score, 'f', 2, 64) + word
}

// formatBytes writes a number of bytes in decimal units, as providers bill
// them.
func formatBytes(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10) + " B"
	}
	x, units := float64(n)/1e3, "kMGTPE"
	for x >= 999.5 && len(units) > 1 { // what rounds to 1000 is written in the next unit
		x, units = x/1e3, units[1:]
	}
	digits := 0
	switch {
	case x < 9.995:
		digits = 2
	case x < 99.95:
		digits = 1
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + units[:1] + "B"
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
