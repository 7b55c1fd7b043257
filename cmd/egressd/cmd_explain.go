// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/explain"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	question admin.Question
	config   string
	socket   string
	json     bool
}

func newExplainCommand(e *env) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain URL",
		Short: "tell which budgets match a request, and when it would go",
		Long: `explain tells of each budget whether it matches a request and why not, the lane
that the request falls into, how that lane is, who waits before it, and when the
request would go if it came now. Nothing is sent, and nothing is taken.

It asks the daemon. With --config it reads that file instead, and tells what
would match.

  egressd explain https://api.example.com/v1/items --method POST --exit E-017`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if o.config != "" && cmd.Flags().Changed("socket") {
				return usagef("--config and --socket exclude each other: a file has no state")
			}
			o.question.URL = args[0]
			return e.explain(cmd.Context(), o)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.question.Exit, "exit", "", "exit by which it goes, as egressd exits lists it (default direct)")
	flags.StringVarP(&o.question.Method, "method", "X", "GET", "method of the request")
	configFlag(cmd, &o.config, "")
	jsonFlag(cmd, &o.json)
	socketFlag(cmd, &o.socket)
	return cmd
}

func (e *env) explain(ctx context.Context, o explainOptions) error {
	answer, err := ask(ctx, o)
	if err != nil {
		return err
	}
	if o.json {
		return e.printJSON(answer)
	}
	return explain.Write(e.stdout, &answer, laneState)
}

// lookupTime is how long names are looked up for.
const lookupTime = 3 * time.Second

// ask has the question answered by whom the flags name.
func ask(ctx context.Context, o explainOptions) (admin.Explanation, error) {
	if o.config == "" {
		return admin.NewClient(o.socket).Explain(ctx, o.question)
	}
	p, err := loadPolicy(o.config)
	if err != nil {
		return admin.Explanation{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	lookup := func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	return explain.Explain(ctx, explain.World{Policy: p, Lookup: lookup}, o.question)
}
