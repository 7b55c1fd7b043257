// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// eventsOptions are the flags of events.
type eventsOptions struct {
	socket     string
	follow     bool
	dispatches bool
	json       bool
	since      string
}

func newEventsCommand(e *env) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:   "events",
		Short: "list what happened, or follow what happens",
		Long: `events lists what happened: cooldowns, refusals, reloads, errors of connections.
The daemon remembers the last 4096; events.log in the policy file keeps them all.
With --follow it goes on with what happens. --since leaves out what is older than
a duration (90s, 15m, 2h), or than a time: 2026-11-29T10:20:00Z, or 2026-11-29,
10:20 or "2026-11-29 10:20:00" in local time. Dispatches, one for each request let
through, are not kept: --dispatches shows those that happen while following.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			if o.dispatches && !o.follow {
				return usagef("--dispatches needs --follow: dispatches are not kept")
			}
			since, err := parseSince(o.since, time.Now())
			if err != nil {
				return err
			}
			return e.events(cmd.Context(), admin.NewClient(o.socket), o, since)
		}),
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what happens")
	cmd.Flags().BoolVar(&o.dispatches, "dispatches", false, "also each request that is let through")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, one object per line")
	cmd.Flags().StringVar(&o.since, "since", "", "leave out what is older: a duration or a time")
	socketFlag(cmd, &o.socket)
	return cmd
}

func (e *env) events(ctx context.Context, client *admin.Client, o eventsOptions, since time.Time) error {
	// Ctrl-C is how one stops following, and no failure.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := client.Events(ctx, o.follow, o.dispatches, func(ev admin.Event) error {
		if ev.Time.Before(since) {
			return nil
		}
		line := []byte(formatEvent(ev))
		if o.json {
			var err error
			if line, err = json.Marshal(ev); err != nil {
				return fmt.Errorf("print JSON: %w", err)
			}
		}
		_, err := fmt.Fprintf(e.stdout, "%s\n", line)
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// timeLayouts are the times that --since takes, of the local zone unless they
// name theirs.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"}

// parseSince reads --since: "" is the beginning of time. A time of day is that
// of today or, if it has not come yet, of yesterday.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			return time.Time{}, usagef("--since %q lies in the future", s)
		}
		return now.Add(-d), nil
	}
	for _, layout := range timeLayouts {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			if t.After(now) {
				return time.Time{}, usagef("--since %q lies in the future", s)
			}
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		clock, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		y, m, d := now.Date()
		t := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		if t.After(now) {
			t = time.Date(y, m, d-1, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		}
		return t, nil
	}
	return time.Time{}, usagef("--since %q is neither a duration nor a time: write it as 15m, 10:20 or 2026-11-29T10:20:00Z", s)
}

// formatEvent is one line for people.
func formatEvent(ev admin.Event) string {
	kind := ev.Kind
	if ev.Extended {
		kind += "+" // of what was closed already
	}
	parts := []string{ev.Time.Local().Format("15:04:05.000"), fmt.Sprintf("%-13s", kind)}
	if ev.Lane != "" {
		parts = append(parts, ev.Lane)
	}
	if ev.Wait != 0 {
		parts = append(parts, seconds(ev.Wait).Round(time.Millisecond).String())
	}
	if ev.Rate != 0 {
		parts = append(parts, strconv.FormatFloat(ev.Rate, 'g', 4, 64)+"/s")
	}
	if ev.Count != 0 {
		parts = append(parts, strconv.FormatUint(ev.Count, 10)+"×")
	}
	if ev.Detail != "" {
		// It may quote what came from the network.
		parts = append(parts, strings.Map(printable, ev.Detail))
	}
	if ev.Suppressed != 0 {
		parts = append(parts, fmt.Sprintf("(and %d before)", ev.Suppressed))
	}
	return strings.TrimRight(strings.Join(parts, " "), " ")
}

// printable keeps what a terminal would obey from it.
func printable(r rune) rune {
	if r < 0x20 || r >= 0x7f && r < 0xa0 {
		return '?'
	}
	return r
}
