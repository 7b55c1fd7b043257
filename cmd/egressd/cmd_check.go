// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics/web"
	"github.com/egressd/egressd/policy/config"
)

// checked is what check found.
type checked struct {
	File     string   `json:"file"`
	Budgets  []string `json:"budgets"`
	Cgroups  []string `json:"cgroups"`
	Programs string   `json:"programs"` // verified, or why they were not tried
}

func newCheckCommand(e *env) *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "check the policy file and say what it really allows; attach nothing",
		Long: `check parses the policy file, prints for each budget what it really allows, and
has the kernel verify the programs, if it may. Nothing is attached or changed.`,
		Args: cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			return e.check(file, asJSON)
		}),
	}
	configFlag(cmd, &file, defaultConfig)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *env) check(file string, asJSON bool) error {
	p, err := loadPolicy(file)
	if err != nil {
		return err
	}
	if p.Metrics.Listen != "" {
		if err := web.Check(p.Metrics.WebConfigFile); err != nil {
			return fmt.Errorf("metrics.web_config_file: %w", err)
		}
	}
	c := checked{File: file, Budgets: config.Describe(p), Cgroups: p.Scope.Cgroups}
	switch err := verifyPrograms(p.Scope.Cgroups); {
	case errors.Is(err, loader.ErrPrivileges):
		// The file can be checked by anybody.
		c.Programs = "not verified, since that takes root"
	case err != nil:
		return err
	default:
		c.Programs = "verified by this kernel"
	}
	if asJSON {
		return e.printJSON(c)
	}
	if len(c.Budgets) == 0 {
		c.Budgets = []string{"no budgets: every connection goes untouched"}
	}
	for _, line := range c.Budgets {
		if _, err := fmt.Fprintln(e.stdout, line); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(e.stdout, "%s: ok; programs: %s\n", file, c.Programs)
	return err
}

// verifyPrograms has the kernel verify the programs.
func verifyPrograms(cgroups []string) error {
	k, err := loader.Open(loader.Config{
		Cgroups: cgroups,
		Lanes:   2, // nobody will use them
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := k.Close(); err != nil {
		return fmt.Errorf("unload programs: %w", err)
	}
	return nil
}
