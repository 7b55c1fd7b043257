// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/policy/config"
)

// Defaults of flags.
const (
	defaultConfig = "/etc/egressd/egressd.yml"
	defaultPinDir = "/sys/fs/bpf/egressd"
)

// run runs the command line args and returns the exit status.
func run(ctx context.Context, e *env, args []string) int {
	root := newRootCommand(e)
	root.SetArgs(args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	return report(e.stderr, root.ExecuteContext(ctx))
}

func newRootCommand(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "egressd",
		Short: "hold a host's outgoing requests to budgets",
		Long: `egressd holds the outgoing requests of a host's processes to budgets per
destination and exit, without a change to any of them.

  egressd demo                                     see what it is for
  egressd exec --limit 'HOST=1/s' -- CMD           one command under a budget
  egressd run --config egressd.yml                 the daemon, for the host`,
		SilenceUsage:  true,
		SilenceErrors: true,
		// A suggestion would make several lines of one error.
		DisableSuggestions: true,
	}
	root.AddGroup(
		&cobra.Group{ID: "do", Title: "Commands:"},
		&cobra.Group{ID: "read", Title: "Asking the daemon:"},
	)
	for _, c := range []*cobra.Command{newRunCommand(e), newExecCommand(e), newObserveCommand(e), newDemoCommand(e), newCheckCommand(e), newSimulateCommand(e), newVerdictCommand(e)} {
		c.GroupID = "do"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{
		newStatusCommand(e), newLanesCommand(e), newExitsCommand(e), newFlowsCommand(e), newEventsCommand(e), newExplainCommand(e), newDiagnoseCommand(e), newTopCommand(e), newCooldownCommand(e),
	} {
		c.GroupID = "read"
		root.AddCommand(c)
	}
	root.AddCommand(newDoctorCommand(e), newCACommand(e), newVersionCommand(e), newOriginCommand(e), newClientsCommand(e), newCanaryCommand(e), newKeeperCommand(e), newRescueCommand(e))
	return root
}

// does makes the RunE of a command whose work is f: what f says is a failure,
// everything else that cobra returns a mistake in the command line.
func does(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f(cmd, args); err != nil {
			return &failure{command: cmd.Name(), err: err}
		}
		return nil
	}
}

// jsonFlag gives a command that lists its --json.
func jsonFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "json", false, "print JSON, for programs")
}

// socketFlag gives a command that asks the daemon its --socket.
func socketFlag(cmd *cobra.Command, value *string) {
	cmd.PersistentFlags().StringVar(value, "socket", config.DefaultSocket, "admin socket of the daemon")
}

// configFlag gives a command its --config.
func configFlag(cmd *cobra.Command, value *string, fallback string) {
	cmd.Flags().StringVarP(value, "config", "c", fallback, "policy file")
}

// printJSON prints v for programs.
func (e *env) printJSON(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}
