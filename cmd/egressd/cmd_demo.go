// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/daemon"
	"github.com/egressd/egressd/cmd/egressd/internal/demo"
	"github.com/egressd/egressd/cmd/egressd/internal/guard"
	"github.com/egressd/egressd/policy"
)

func newDemoCommand(e *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "show what it is for: workers and an origin, without and with egressd",
		Long: `demo runs real worker processes against an origin on this host that allows one
request per second: first on their own, then, unchanged, with egressd; then fifty
workers through one 429 with Retry-After. It takes root and at most 40 s, sends
nothing beyond the loopback, and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.demo(cmd.Context(), asJSON)
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *env) demo(ctx context.Context, asJSON bool) error {
	// Ten seconds of watching only to learn that the rest needs root would be
	// unkind.
	if err := verifyPrograms(nil); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	log, err := newLogger(e.stderr, "error")
	if err != nil {
		return err
	}
	cfg, err := e.daemonConfig(log)
	if err != nil {
		return err
	}
	d := &demo.Demo{
		Self:   cfg.Canary[0],
		Stderr: e.stderr,
		Guard: func(ctx context.Context, limit string) (demo.Guard, error) {
			return startDemoGuard(ctx, cfg, limit)
		},
	}
	if !asJSON {
		d.Progress = func(what string) { _, _ = fmt.Fprintln(e.stdout, what) }
	}
	result, err := d.Run(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("demo was interrupted; nothing is left of it")
		}
		return err
	}
	if asJSON {
		return e.printJSON(result)
	}
	if _, err := fmt.Fprintln(e.stdout); err != nil {
		return err
	}
	return result.Print(e.stdout)
}

// demoGuard is a guard whose end takes everything in it along.
type demoGuard struct{ *guard.Guard }

func startDemoGuard(ctx context.Context, cfg daemon.Config, limit string) (demo.Guard, error) {
	cfg.Policy = func() (*policy.Policy, error) { return execPolicy(execOptions{limits: []string{limit}}) }
	g, err := guard.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return demoGuard{g}, nil
}

// Close implements demo.Guard.
func (g demoGuard) Close() error {
	return errors.Join(g.Kill(), g.Stop(), g.Remove())
}
