// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

func newCooldownCommand(e *env) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "cooldown",
		Short: "close or open a lane by hand",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("cooldown needs set or clear")
		},
	}
	socketFlag(cmd, &socket)
	set := &cobra.Command{
		Use:   "set LANE DURATION",
		Short: "close a lane for 30s, 5m, 1h, at most 24h; a longer cooldown stays",
		Args:  cobra.ExactArgs(2),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			d, err := admin.ParseDuration(args[1])
			if err != nil {
				return &usageError{err}
			}
			if err := admin.NewClient(socket).Cooldown(cmd.Context(), args[0], d); err != nil {
				return err
			}
			_, err = fmt.Fprintf(e.stdout, "%s is closed for %s\n", args[0], d)
			return err
		}),
	}
	unset := &cobra.Command{
		Use:   "clear LANE",
		Short: "open a lane now, whatever the origin asked for",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if err := admin.NewClient(socket).Cooldown(cmd.Context(), args[0], 0); err != nil {
				return err
			}
			_, err := fmt.Fprintf(e.stdout, "%s is open\n", args[0])
			return err
		}),
	}
	cmd.AddCommand(set, unset)
	return cmd
}
