// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/guard"
	"github.com/egressd/egressd/cmd/egressd/internal/launch"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// execOptions are the flags of exec.
type execOptions struct {
	limits  []string
	config  string
	observe bool
	summary string // file
	quiet   bool
	socket  string
	metrics string
	level   string
}

func newExecCommand(e *env) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [--limit 'HOST[:PORT]=RATE[,OPTION]…']… [--config FILE] -- COMMAND [ARG]…",
		Short: "run one command under a budget",
		Long: `exec runs one command, and all that it starts, under budgets of its own, then
prints what became of its requests and ends with its exit status. It takes root;
through sudo, the command itself runs as the user who called sudo.

  sudo egressd exec --limit 'store.example.com=1/s' -- python3 worker.py
  sudo egressd exec --limit 'api.example.com:8080=90/min,burst=5' -- make crawl
  sudo egressd exec --limit '*=auto,concurrency=4' -- make crawl

HTTPS is counted by connections and what they look like from outside, unless the
command writes its TLS keys: with --observe, or tls=observe in a limit, it is told
to, and each request is seen. Nothing of what it sends is changed.

RATE is a number in a time, as in 1/s, or auto: begin with one a second and learn
from the answers. Options are burst=N, concurrency=N (so many under way at once)
window=N/DURATION (at most so many in any such time, as in window=100/1m) and
tls=observe.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("exec needs a command after --")
			}
			return nil
		},
		RunE: does(func(cmd *cobra.Command, args []string) error {
			return e.exec(cmd.Context(), o, args)
		}),
	}
	flags := cmd.Flags()
	// What follows the command's name is the command's, also without --.
	flags.SetInterspersed(false)
	flags.StringArrayVarP(&o.limits, "limit", "l", nil, "a budget, as in 'store.example.com=1/s' or 'HOST:PORT=90/min,burst=5'")
	configFlag(cmd, &o.config, "")
	flags.BoolVar(&o.observe, "observe", false, "look into HTTPS with keys that the command writes")
	flags.StringVar(&o.summary, "summary-json", "", "file for the summary in JSON")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "print no summary")
	flags.StringVar(&o.socket, "socket", "", "admin socket to open, for egressd lanes and the like")
	flags.StringVar(&o.metrics, "metrics", "", "address to answer Prometheus on")
	logFlag(cmd, &o.level, "error")
	return cmd
}

// execPolicy is the policy that the flags ask for. Limits come first: they
// were written for this very command.
func execPolicy(o execOptions) (*policy.Policy, error) {
	if len(o.limits) == 0 && o.config == "" {
		return nil, usagef("exec needs --limit or --config")
	}
	p := config.Default()
	if o.config != "" {
		var err error
		if p, err = loadPolicy(o.config); err != nil {
			return nil, err
		}
	}
	var budgets []*policy.Budget
	for _, text := range o.limits {
		b, err := config.ParseLimit(text)
		if err != nil {
			return nil, &usageError{err}
		}
		budgets = append(budgets, b)
	}
	p.Budgets = append(budgets, p.Budgets...)
	names := make(map[string]bool)
	for _, b := range p.Budgets {
		if names[b.Name] {
			return nil, usagef("two budgets are called %q: give each destination one --limit", b.Name)
		}
		names[b.Name] = true
	}
	if config.Shapes(p.Budgets) > policy.MaxShapes {
		return nil, usagef("--limit has per: [destination, exit], which is one more than the %d different per that there may be: write the budget into %s, with a per that is there", policy.MaxShapes, o.config)
	}
	if o.observe {
		observeAll(p)
	}
	p.Admin.Socket, p.Metrics.Listen = o.socket, o.metrics
	return p, nil
}

// observeAll has everything looked into that would not be otherwise.
func observeAll(p *policy.Policy) {
	p.TLS.Mode, p.TLS.KeyLog = max(p.TLS.Mode, policy.Observe), true
	for _, b := range p.Budgets {
		b.TLS = max(b.TLS, policy.Observe)
	}
}

// wantsKeys reports whether keys of the command are of use.
func wantsKeys(p *policy.Policy) bool {
	if !p.TLS.KeyLog {
		return false
	}
	return p.TLS.Mode >= policy.Observe || slices.ContainsFunc(p.Budgets, func(b *policy.Budget) bool {
		return b.TLS >= policy.Observe && b.Mode != policy.Off
	})
}

func (e *env) exec(ctx context.Context, o execOptions, args []string) error {
	p, err := execPolicy(o)
	if err != nil {
		return err
	}
	log, err := newLogger(e.stderr, o.level)
	if err != nil {
		return err
	}
	cfg, err := e.daemonConfig(log)
	if err != nil {
		return err
	}
	cfg.File = o.config
	cfg.Policy = func() (*policy.Policy, error) { return p, nil }
	user, err := launch.Invoker(e.getenv, e.euid)
	if err != nil {
		return err
	}
	// From here on no signal may end us before the cgroup is gone.
	signals := launch.Catch()
	defer signals.Stop()
	keys := &commandKeys{env: e.environ()}
	if wantsKeys(p) {
		if keys, err = e.commandKeys(log, user); err != nil {
			return err
		}
	}
	cfg.Keys = keys.keys
	g, err := guard.Start(ctx, cfg)
	if err != nil {
		return errors.Join(err, keys.close(false))
	}
	status, err := e.guarded(g, signals, launch.Command{
		Args: args, Env: keys.env, User: user, Cgroup: g.Cgroup(),
		Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr,
	}, o)
	left, leftErr := g.Left()
	err = errors.Join(err, g.Stop(), keys.close(len(left) > 0 || leftErr != nil))
	if err := errors.Join(err, g.Remove()); err != nil {
		return &statusError{status: max(status, statusFailed), err: err}
	}
	if status != statusDone {
		return &statusError{status: status}
	}
	return nil
}

// guarded runs the command in g and sums up. Its status is that of the command
// if it ran.
func (e *env) guarded(g *guard.Guard, signals *launch.Signals, c launch.Command, o execOptions) (int, error) {
	if s := signals.Ended(); s != 0 {
		return 128 + int(s), nil
	}
	process, err := launch.Start(c)
	if err != nil {
		var failed *launch.Error
		if errors.As(err, &failed) {
			return failed.Status, err
		}
		return statusFailed, err
	}
	status, err := process.Wait(signals)
	if err != nil {
		return statusFailed, err
	}
	left, err := g.Left()
	if err != nil {
		return status, err
	}
	s := summary{Command: c.Args, Status: status, Lanes: g.Lanes(), PassedBy: g.PassedBy(), Left: len(left)}
	if s.Lanes == nil {
		s.Lanes = []guard.Lane{}
	}
	if !o.quiet {
		printError(e.stderr, s.format(e.width()))
	}
	if o.summary != "" {
		return status, s.write(o.summary)
	}
	return status, nil
}

// summary is what became of a command's requests.
type summary struct {
	Command  []string          `json:"command"`
	Status   int               `json:"status"`
	Lanes    []guard.Lane      `json:"lanes"`
	PassedBy map[string]uint64 `json:"passed_by,omitempty"` // connections that went untouched, by gate
	Left     int               `json:"left,omitempty"`      // processes that go on
}

// write writes the summary for programs.
func (s summary) write(file string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

// format is the summary for people.
func (s summary) format(width int) string {
	var out strings.Builder
	if len(s.Lanes) == 0 {
		out.WriteString("no request met a budget\n")
	} else {
		rows := make([][]string, len(s.Lanes))
		for i, l := range s.Lanes {
			rows[i] = []string{
				l.Lane, strconv.FormatUint(l.Requests, 10), strconv.FormatUint(l.Held, 10),
				strconv.FormatUint(l.Refused, 10), strconv.FormatUint(l.Limited, 10),
				age(seconds(l.LongestWait)), strconv.Itoa(l.MaxInAnySecond),
			}
		}
		if width > 0 {
			width = max(width-len("egressd: "), 1)
		}
		// A strings.Builder never fails.
		_ = table.Write(&out, width, []table.Column{
			{Title: "LANE", Flex: true},
			{Title: "REQUESTS", Right: true},
			{Title: "HELD", Right: true},
			{Title: "REFUSED", Right: true},
			{Title: "429S", Right: true},
			{Title: "LONGEST WAIT", Right: true},
			{Title: "MAX IN 1S", Right: true},
		}, rows)
	}
	for _, gate := range slices.Sorted(maps.Keys(s.PassedBy)) {
		n := s.PassedBy[gate]
		fmt.Fprintf(&out, "%d connection%s went untouched by gate %s\n", n, plural(n, "", "s"), gate)
	}
	if s.Left > 0 {
		fmt.Fprintf(&out, "%d process%s of %s %s on in the background, from now on without a budget\n",
			s.Left, plural(uint64(s.Left), "", "es"), s.Command[0], plural(uint64(s.Left), "goes", "go"))
	}
	return out.String()
}

// plural chooses between one and several.
func plural(n uint64, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}
