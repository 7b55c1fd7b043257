// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/demo"
	"github.com/egressd/egressd/cmd/egressd/internal/rescue"
)

// canaryCommand is the command by which a daemon runs this binary to test the
// hooks.
const canaryCommand = "canary"

// newCanaryCommand makes the connection by which a daemon tests its hooks.
// What becomes of it the daemon sees in the kernel.
func newCanaryCommand(*env) *cobra.Command {
	return &cobra.Command{
		Use:    canaryCommand + " ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			conn, err := net.DialTimeout("tcp", args[0], time.Second)
			if err != nil {
				return nil // refused, since the hook left it alone
			}
			return conn.Close()
		}),
	}
}

// newRescueCommand is the process that frees clients of a daemon that stands
// still.
func newRescueCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:    rescue.CommandName + " PID",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			// Its standard error may be a pipe whose reader is gone.
			signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
			heartbeat := os.NewFile(rescue.HeartbeatFD, "heartbeat")
			return rescue.Run(pid, heartbeat, slog.New(slog.NewTextHandler(e.stderr, nil)))
		}),
	}
}

// newOriginCommand is the demo's origin.
func newOriginCommand(e *env) *cobra.Command {
	var cfg demo.OriginConfig
	cmd := &cobra.Command{
		Use:    demo.OriginCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			return demo.Serve(cfg, e.stdin, e.stdout)
		}),
	}
	cmd.Flags().DurationVar(&cfg.Every, "every", 0, "time in which one request is allowed")
	cmd.Flags().DurationVar(&cfg.LimitOnceAfter, "limit-once-after", 0, "when one request is answered with 429")
	cmd.Flags().DurationVar(&cfg.RetryAfter, "retry-after", 0, "Retry-After of such answers")
	cmd.Flags().IntVar(&cfg.Burst, "burst", 1, "how many may come at once")
	cmd.Flags().BoolVar(&cfg.Shut, "shut", false, "be closed for as long after a limit")
	return cmd
}

// newClientsCommand is a process of the demo's clients.
func newClientsCommand(*env) *cobra.Command {
	var c demo.Clients
	cmd := &cobra.Command{
		Use:    demo.ClientsCommand + " URL",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			c.URL = args[0]
			c.Run(cmd.Context())
			return nil
		}),
	}
	cmd.Flags().IntVar(&c.Count, "count", 1, "clients at the same time")
	cmd.Flags().DurationVar(&c.Pause, "pause", 0, "between requests")
	cmd.Flags().DurationVar(&c.For, "for", time.Minute, "how long")
	cmd.Flags().BoolVar(&c.Heed, "heed", false, "sleep for Retry-After")
	return cmd
}
