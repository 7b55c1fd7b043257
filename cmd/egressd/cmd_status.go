// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

func newStatusCommand(e *env) *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "tell how the daemon fares",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.status(cmd.Context(), admin.NewClient(socket), asJSON)
		}),
	}
	jsonFlag(cmd, &asJSON)
	socketFlag(cmd, &socket)
	return cmd
}

func (e *env) status(ctx context.Context, client *admin.Client, asJSON bool) error {
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(s)
	}
	_, err = fmt.Fprint(e.stdout, formatStatus(s, time.Now()))
	return err
}

// formatStatus is a status for people at now.
func formatStatus(s admin.Status, now time.Time) string {
	var out strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "%-10s%s\n", name, fmt.Sprintf(format, args...))
	}
	row("daemon", "%s, pid %d, up %s", s.Version, s.PID, age(now.Sub(s.Started)))
	file := s.Config.File
	if file == "" {
		file = "from the command line"
	}
	row("policy", "%s, in force since %s", file, s.Config.Loaded.Local().Format(time.DateTime))
	if !s.Config.OK {
		for line := range strings.Lines(s.Config.Error) {
			row("", "LAST RELOAD FAILED, the old policy stays: %s", strings.TrimRight(line, "\n"))
		}
	}
	for i, b := range s.Config.Budgets {
		name := ""
		if i == 0 {
			name = "budgets"
		}
		row(name, "%s", b)
	}
	if k := s.Kernel; k != nil {
		state := "attached to "
		if !k.Attached {
			state = "NOT attached to "
		}
		row("programs", "%s%s", state, strings.Join(k.Cgroups, ", "))
		row("canary", "%s", formatCanary(k.Canary, now))
		for i, gate := range slices.Sorted(maps.Keys(k.Untouched)) {
			name := ""
			if i == 0 {
				name = "untouched"
			}
			row(name, "%d by gate %s", k.Untouched[gate], gate)
		}
	}
	row("now", "%d lanes, %d connections, %d requests waiting", s.Lanes, s.Flows, s.Waiting)
	row("exits", "%s", formatUsing(s.Exits))
	if f := s.Fleet; f != nil {
		row("fleet", "%s, as %s: %s", f.Store, f.Host, formatShared(f.Lanes))
	}
	if s.Metrics != "" {
		scheme := "http"
		if s.MetricsTLS {
			scheme = "https"
		}
		row("metrics", "%s://%s/metrics", scheme, s.Metrics)
	}
	return out.String()
}

// formatShared is the shared lanes in short.
func formatShared(lanes map[string]int) string {
	var parts []string
	lost := false
	for _, mode := range slices.Sorted(maps.Keys(lanes)) {
		parts = append(parts, fmt.Sprintf("%d by %s", lanes[mode], mode))
		lost = lost || mode != "fleet" && mode != "returning"
	}
	switch {
	case len(parts) == 0:
		return "no lane is shared yet"
	case lost:
		return "STORE LOST, lanes " + strings.Join(parts, ", ")
	}
	return "lanes " + strings.Join(parts, ", ")
}

// formatUsing is the exits in short.
func formatUsing(u admin.Using) string {
	text := fmt.Sprintf("%d seen, %d with a closed lane", u.Seen, u.Closed)
	if n := len(u.Lockstep); n > 0 {
		text += "; clients in lockstep at " + strings.Join(u.Lockstep[:min(n, 3)], ", ")
		if n > 3 {
			text += fmt.Sprintf(" and %d more", n-3)
		}
	}
	return text
}

func formatCanary(c admin.Canary, now time.Time) string {
	switch {
	case c.At.IsZero():
		return "not tried yet"
	case c.OK:
		return fmt.Sprintf("ok, %s ago", age(now.Sub(c.At)))
	}
	return fmt.Sprintf("FAILED %s ago: %s", age(now.Sub(c.At)), c.Error)
}

// age writes a duration with as many digits as matter to people.
func age(d time.Duration) string {
	// What the next coarser unit rounds up to it is written in that unit.
	switch {
	case d < 9950*time.Millisecond:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour-time.Second/2:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
