// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
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
}

func newEventsCommand(e *env) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:   "events",
		Short: "list what happened, or follow what happens",
		Long: `events lists what happened: cooldowns, refusals, reloads, errors of connections.
With --follow it goes on with what happens. Dispatches, one for each request
let through, are not kept: --dispatches shows those that happen while following.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			if o.dispatches && !o.follow {
				return usagef("--dispatches needs --follow: dispatches are not kept")
			}
			return e.events(cmd.Context(), admin.NewClient(o.socket), o)
		}),
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what happens")
	cmd.Flags().BoolVar(&o.dispatches, "dispatches", false, "also each request that is let through")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, one object per line")
	socketFlag(cmd, &o.socket)
	return cmd
}

func (e *env) events(ctx context.Context, client *admin.Client, o eventsOptions) error {
	// Ctrl-C is how one stops following, and no failure.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := client.Events(ctx, o.follow, o.dispatches, func(ev admin.Event) error {
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

// formatEvent is one line for people.
func formatEvent(ev admin.Event) string {
	parts := []string{ev.Time.Local().Format("15:04:05.000"), fmt.Sprintf("%-13s", ev.Kind)}
	if ev.Lane != "" {
		parts = append(parts, ev.Lane)
	}
	if ev.Wait != 0 {
		parts = append(parts, seconds(ev.Wait).Round(time.Millisecond).String())
	}
	if ev.Detail != "" {
		// It may quote what came from the network.
		parts = append(parts, strings.Map(printable, ev.Detail))
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
