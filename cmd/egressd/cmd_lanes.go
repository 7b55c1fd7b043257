// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
)

func newLanesCommand(e *env) *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "list the lanes: their rates, who waits, and why one is closed",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.lanes(cmd.Context(), admin.NewClient(socket), asJSON)
		}),
	}
	jsonFlag(cmd, &asJSON)
	socketFlag(cmd, &socket)
	return cmd
}

func (e *env) lanes(ctx context.Context, client *admin.Client, asJSON bool) error {
	lanes, err := client.Lanes(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(lanes)
	}
	rows := make([][]string, len(lanes))
	for i, l := range lanes {
		rows[i] = []string{
			l.Lane, formatRate(l.Rate), strconv.FormatInt(l.Waiting, 10),
			strconv.FormatUint(l.Granted, 10), strconv.FormatUint(l.Held, 10),
			strconv.FormatUint(l.Refused, 10), strconv.FormatUint(l.Limited, 10), laneState(l),
		}
	}
	return table.Write(e.stdout, e.width(), []table.Column{
		{Title: "LANE", Flex: true},
		{Title: "RATE", Right: true},
		{Title: "WAIT", Right: true},
		{Title: "SENT", Right: true},
		{Title: "HELD", Right: true},
		{Title: "REFUSED", Right: true},
		{Title: "LIMITED", Right: true},
		{Title: "STATE", Flex: true},
	}, rows)
}

// laneState says in words whether a lane is open, and if not why and until
// when.
func laneState(l admin.Lane) string {
	state := "open"
	switch {
	case !l.Open && l.OpensAt != nil:
		state = fmt.Sprintf("closed for %s, until %s", age(seconds(l.ClosedFor)), l.OpensAt.Local().Format(time.TimeOnly))
		if l.Reason != "" {
			state += ": " + l.Reason
		}
	case l.Probing:
		state = "one probe"
	case l.Rate < l.BaseRate*0.999:
		state = fmt.Sprintf("slowed from %s", formatRate(l.BaseRate))
	}
	if l.Stalled > 0 {
		state += fmt.Sprintf(", no success for %s", age(seconds(l.Stalled)))
	}
	if l.Concurrency > 0 {
		state += fmt.Sprintf(", %d of %d in flight", l.InFlight, l.Concurrency)
	}
	if u := l.Window; u != nil {
		state += fmt.Sprintf(", %d of %d left", u.Left, u.Limit)
		if u.Left == 0 {
			state += ", more in " + age(seconds(u.Until))
		}
	}
	if u := l.Quota; u != nil {
		state += fmt.Sprintf(", origin leaves %d for %s", u.Left, age(seconds(u.Until)))
	}
	if f := l.Fleet; f != nil {
		state += ", " + fleetState(f)
	}
	if l.Mode != "enforce" {
		state += " (" + l.Mode + ")"
	}
	return state
}

// fleetState says in words how the lane is held together with other hosts.
func fleetState(f *admin.Fleet) string {
	s := "fleet of " + strconv.Itoa(f.Hosts)
	if f.Hosts == 0 {
		s = "fleet"
	}
	s += " by " + f.Scheme
	switch f.Mode {
	case "share":
		s += ", without its store: this host's share"
	case "closed":
		s += ", without its store: nothing goes"
	case "open":
		s += ", without its store: as if alone"
	case "returning":
		s += ", going back to its store"
	}
	if f.Bound == nil {
		return s + ", no bound"
	}
	return s + ", bound +" + strconv.FormatFloat(*f.Bound, 'f', -1, 64)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// formatRate writes units per second by the unit that suits.
func formatRate(perSecond float64) string {
	if perSecond == 0 {
		return "none"
	}
	for _, unit := range []struct {
		name  string
		scale float64
	}{{"s", 1}, {"min", 60}} {
		if n := perSecond * unit.scale; n >= 0.1 {
			if n >= 100 {
				return strconv.FormatFloat(n, 'f', 0, 64) + "/" + unit.name
			}
			return strconv.FormatFloat(n, 'g', 3, 64) + "/" + unit.name
		}
	}
	return strconv.FormatFloat(perSecond*3600, 'g', 3, 64) + "/h"
}
