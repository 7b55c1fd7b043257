// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/daemon"
	"github.com/egressd/egressd/cmd/egressd/internal/sdnotify"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// runOptions are the flags of run.
type runOptions struct {
	config string
	pinDir string
	level  string
	stats  bool
}

func newRunCommand(e *env) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "run the daemon",
		Long: `run holds the connections of the host, or of the cgroups that the policy file
names, to its budgets until SIGINT or SIGTERM. SIGHUP reads the file again; a bad
file changes nothing. Cooldowns and buckets outlive the daemon in the pin directory.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.runDaemon(cmd.Context(), o)
		}),
	}
	configFlag(cmd, &o.config, defaultConfig)
	cmd.Flags().StringVar(&o.pinDir, "pin-dir", defaultPinDir,
		"folder on a BPF file system where the ledger outlives the daemon; empty for none")
	cmd.Flags().BoolVar(&o.stats, "program-stats", false,
		"have the kernel measure its programs, for egressd_program_seconds_total; some 20 ns a run")
	logFlag(cmd, &o.level, "info")
	return cmd
}

// logFlag gives a command that runs the daemon its --log-level.
func logFlag(cmd *cobra.Command, value *string, fallback string) {
	cmd.Flags().StringVar(value, "log-level", fallback, "debug, info, warn or error")
}

// newLogger makes the logger of a level.
func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %q is none of debug, info, warn and error", level)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}

func (e *env) runDaemon(ctx context.Context, o runOptions) error {
	log, err := newLogger(e.stderr, o.level)
	if err != nil {
		return err
	}
	cfg, err := e.daemonConfig(log)
	if err != nil {
		return err
	}
	cfg.File, cfg.PinDir, cfg.ProgramStats = o.config, o.pinDir, o.stats
	cfg.Policy = func() (*policy.Policy, error) { return loadPolicy(o.config) }
	cfg.Notifier = sdnotify.New(e.getenv, e.pid)

	// The first signal ends the daemon, the second one kills it, since the
	// handler goes with the first.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	signal.Ignore(unix.SIGPIPE) // whoever reads the log may end before us
	reload := hangups(ctx)

	d, err := daemon.Open(cfg)
	if err != nil {
		return err
	}
	err = d.Run(ctx, reload, func() {
		log.Info("ready", "policy", d.Summary(), "file", o.config)
		if err := cfg.Notifier.Ready(d.Summary()); err != nil {
			log.Warn("service manager was not told", "err", err)
		}
	})
	return errors.Join(err, d.Close())
}

// hangups passes SIGHUP on until ctx ends. Signals that come while one is
// being answered are one.
func hangups(ctx context.Context) <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP)
	asked := make(chan struct{}, 1)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	return asked
}

// daemonConfig is what all daemons of this binary have in common.
func (e *env) daemonConfig(log *slog.Logger) (daemon.Config, error) {
	self, err := e.self()
	if err != nil {
		return daemon.Config{}, fmt.Errorf("find own binary: %w", err)
	}
	v := readVersion()
	return daemon.Config{
		Self:   self,
		Canary: []string{self, canaryCommand},
		Rescue: true,
		Build:  metrics.Build{Version: v.Version, Revision: v.Commit, GoVersion: v.Go},
		PID:    e.pid,
		Logger: log,
		Stderr: e.stderr,
		Getenv: e.getenv,
	}, nil
}

// loadPolicy reads a policy file. A missing one gets a line of its own: it is
// what a newcomer meets first.
func loadPolicy(path string) (*policy.Policy, error) {
	p, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no policy file %s: write one, or name another with --config", path)
	}
	return p, err
}
