// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
)

func newFlowsCommand(e *env) *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "list the connections in the hands of the proxy",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			return e.flows(cmd.Context(), admin.NewClient(socket), asJSON)
		}),
	}
	jsonFlag(cmd, &asJSON)
	socketFlag(cmd, &socket)
	return cmd
}

func (e *env) flows(ctx context.Context, client *admin.Client, asJSON bool) error {
	flows, err := client.Flows(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(flows)
	}
	rows := make([][]string, len(flows))
	for i, f := range flows {
		to := f.Dest
		if f.Host != "" {
			to = fmt.Sprintf("%s (%s)", f.Host, f.Dest)
		}
		rows[i] = []string{
			strconv.FormatUint(uint64(f.PID), 10), f.Command, to, f.Exit, f.State, f.Sight,
			strconv.Itoa(f.Requests), age(seconds(f.Age)),
		}
	}
	return table.Write(e.stdout, e.width(), []table.Column{
		{Title: "PID", Right: true},
		{Title: "COMMAND", Flex: true},
		{Title: "TO", Flex: true},
		{Title: "EXIT", Flex: true},
		{Title: "STATE"},
		{Title: "SIGHT"},
		{Title: "REQUESTS", Right: true},
		{Title: "AGE", Right: true},
	}, rows)
}
