// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/table"
)

// Write prints the report for people, in lines of width characters where that
// can be helped; zero is no bound.
func (r *Report) Write(w io.Writer, width int) error {
	longest := 0
	for _, c := range r.Checks {
		longest = max(longest, len(c.Name))
	}
	var out strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&out, "%-4s  %-*s  %s\n", c.Status, longest, c.Name, c.Finding)
		if c.Remedy != "" {
			fmt.Fprintf(&out, "%s-> %s\n", strings.Repeat(" ", 4+2+longest+2), c.Remedy)
		}
	}
	out.WriteString("\nHow well each shaped process is seen:\n")
	if len(r.Processes) == 0 {
		out.WriteString("none of those that could be looked into has TLS\n")
	}
	if r.Unseen > 0 {
		fmt.Fprintf(&out, "%d more could not be looked into", r.Unseen)
		if slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Unknown }) {
			out.WriteString(": " + asRoot)
		}
		out.WriteByte('\n')
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return err
	}
	if len(r.Processes) == 0 {
		return nil
	}
	rows := make([][]string, len(r.Processes))
	for i, p := range r.Processes {
		sight := p.Sight
		if p.Expected {
			sight += "?"
		}
		rows[i] = []string{
			strconv.Itoa(p.PID), p.Command, p.Cgroup, p.Library, strconv.Itoa(p.Connections), sight, p.Next,
		}
	}
	if err := table.Write(w, width, []table.Column{
		{Title: "PID", Right: true},
		{Title: "COMMAND", Flex: true},
		{Title: "CGROUP", Flex: true},
		{Title: "TLS", Flex: true},
		{Title: "OPEN", Right: true},
		{Title: "SIGHT"},
		{Title: "ONE STEP BETTER", Flex: true},
	}, rows); err != nil {
		return err
	}
	_, err := io.WriteString(w, "A sight with ? is what to expect: no connection shows it now.\n")
	return err
}
