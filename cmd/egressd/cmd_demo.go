// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/daemon"
	"github.com/egressd/egressd/cmd/egressd/internal/demo"
	"github.com/egressd/egressd/cmd/egressd/internal/guard"
	"github.com/egressd/egressd/cmd/egressd/internal/plot"
	"github.com/egressd/egressd/policy"
)

// demoOptions are the flags of demo.
type demoOptions struct {
	json       bool
	png        string
	prometheus string
	span       time.Duration
}

func newDemoCommand(e *env) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "show what it is for: workers and an origin, without and with egressd",
		Long: `demo runs real worker processes against an origin on this host that allows one
request per second: first on their own, then, unchanged, with egressd; then fifty
workers through one 429 with Retry-After. It takes root and at most 40 s, sends
nothing beyond the loopback, and leaves nothing behind.

With --png it plays a stampede of fifty workers instead, measured and then held,
and draws both: what the origin received in each second and, where there is a
Prometheus, what the dashboard's queries make of the same runs. That takes a
minute.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.png == "" && cmd.Flags().Changed("prometheus"):
				return usagef("--prometheus needs --png: nothing else asks it")
			case o.png == "" && cmd.Flags().Changed("for"):
				return usagef("--for needs --png: the rest takes as long as it takes")
			case o.span < minPicture || o.span > maxPicture:
				return usagef("--for %v: must be from %v to %v", o.span, minPicture, maxPicture)
			}
			if o.png != "" && !cmd.Flags().Changed("prometheus") {
				o.prometheus, _ = exec.LookPath("prometheus") // then the picture does without
			}
			return e.demo(cmd.Context(), o)
		}),
	}
	jsonFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.png, "png", "", "draw a stampede, measured and held, into this file")
	cmd.Flags().StringVar(&o.prometheus, "prometheus", "", "Prometheus that --png asks, empty for none (default the one in $PATH)")
	cmd.Flags().DurationVar(&o.span, "for", demo.PictureSpan, "how long each of the two runs of --png takes")
	return cmd
}

// Bounds of --for: below there is nothing to see, and above no column of the
// picture is as wide as a pixel.
const (
	minPicture = 5 * time.Second
	maxPicture = 5 * time.Minute
)

func (e *env) demo(ctx context.Context, o demoOptions) error {
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
			return startDemoGuard(ctx, cfg, execOptions{limits: []string{limit}}, true)
		},
		Measured: func(ctx context.Context, limit string, enforce bool, metrics string) (demo.Guard, error) {
			return startDemoGuard(ctx, cfg, execOptions{limits: []string{limit}, metrics: metrics}, enforce)
		},
		Prometheus: o.prometheus,
		Span:       o.span,
	}
	if !o.json {
		d.Progress = func(what string) { _, _ = fmt.Fprintln(e.stdout, what) }
	}
	if o.png != "" {
		err = e.demoPicture(ctx, d, o)
	} else {
		err = e.demoStories(ctx, d, o)
	}
	if err != nil && ctx.Err() != nil {
		return errors.New("demo was interrupted; nothing is left of it")
	}
	return err
}

// demoStories plays what people watch.
func (e *env) demoStories(ctx context.Context, d *demo.Demo, o demoOptions) error {
	result, err := d.Run(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return e.printJSON(result)
	}
	if _, err := fmt.Fprintln(e.stdout); err != nil {
		return err
	}
	return result.Print(e.stdout)
}

// demoPicture plays what is drawn.
func (e *env) demoPicture(ctx context.Context, d *demo.Demo, o demoOptions) error {
	return writePicture(o.png, func() (*plot.Figure, error) {
		picture, err := d.Picture(ctx)
		if err != nil {
			return nil, err
		}
		if o.json {
			err = e.printJSON(picture)
		}
		return picture.Figure(), err
	})
}

// demoGuard is a guard whose end takes everything in it along.
type demoGuard struct{ *guard.Guard }

// startDemoGuard starts a guard with the policy of exec's options. Without
// enforce its budgets only measure.
func startDemoGuard(ctx context.Context, cfg daemon.Config, o execOptions, enforce bool) (demo.Guard, error) {
	cfg.Policy = func() (*policy.Policy, error) {
		p, err := execPolicy(o)
		if err == nil && !enforce {
			for _, b := range p.Budgets {
				b.Mode = policy.Shadow
			}
		}
		return p, err
	}
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
