// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// titles are the kinds for people.
var titles = map[Kind]string{
	PastEgressd:    "traffic goes past egressd",
	Multiplication: "multiplication: each is within the limit, the sum is not",
	OverBudget:     "one process alone is over a budget that holds nobody",
	WrongLimit:     "wrong limit: the origin allows less than the budget",
	SharedExit:     "an exit is shared with others",
	RetryStorm:     "retry storm: limits are answered with more requests",
	WindowEdges:    "window edges: it goes by the windows of a clock",
	Escalation:     "escalation: the origin asks for longer and longer",
	OwnRefusals:    "429s by egressd itself",
	BlindTLS:       "TLS that nobody sees into",
	Challenged:     "a challenge of a WAF, and no limit",
	ExitTrouble:    "the exit refuses, not the origin",
	Unmeasured:     "no budget looks at it",
}

// shown bounds the processes of a finding in print.
const shown = 8

// Write prints the report for people.
func (r *Report) Write(w io.Writer) error {
	var out strings.Builder
	if r.Watched > 0 {
		fmt.Fprintf(&out, "Watched for %s: %d request%s sent, %d limited by their origins, %d refused by egressd.\n",
			seconds(r.Watched), r.Requests, plural(r.Requests), r.TooMany, r.Refused)
	}
	fmt.Fprintf(&out, "In the last %s: %d request%s answered, %d of them 429.\n", seconds(r.Since), r.PastSent, plural(r.PastSent), r.Past429s)
	if len(r.Labels) > 0 {
		fmt.Fprintf(&out, "These are all that is counted under %s.\n", strings.Join(r.Labels, ", "))
	}
	for i := range r.Findings {
		r.Findings[i].write(&out, i+1)
	}
	switch {
	case len(r.Findings) > 0:
	case r.Requests+r.PastSent == 0:
		out.WriteString("\nNothing found: no request came by, so there was nothing to judge.\n")
	case r.TooMany+r.Past429s == 0:
		out.WriteString("\nNothing found: no origin limited anything that was seen, and nothing went past egressd.\n")
	default:
		out.WriteString("\nNothing found: there were 429s, but too few, or too few numbers about them, to tell a cause. Watch longer with --for.\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (f *Finding) write(out *strings.Builder, n int) {
	fmt.Fprintf(out, "\n%d. %s (%s)\n", n, titles[f.Kind], f.Certainty)
	row := func(name, text string) { fmt.Fprintf(out, "   %-6s %s\n", name, clean(text)) }
	switch {
	case f.Lane != "":
		row("lane", f.Lane)
	case f.Destination != "" && f.Exit != "":
		row("at", f.Destination+" through "+f.Exit)
	case f.Destination != "":
		row("at", f.Destination)
	case f.Exit != "":
		row("exit", f.Exit)
	}
	row("saw", f.Saw)
	for i, p := range f.Processes {
		name := ""
		if i == 0 {
			name = "who"
		}
		if i == shown {
			row("", fmt.Sprintf("and %d more", len(f.Processes)-shown))
			break
		}
		text := fmt.Sprintf("%s (pid %d)", p.Command, p.PID)
		if p.PerSecond > 0 {
			text += ", about " + rateText(round(p.PerSecond, 2))
		}
		row(name, text)
	}
	row("do", f.Do)
	name := "policy"
	for line := range strings.Lines(f.Policy) {
		row(name, strings.TrimRight(line, "\n"))
		name = ""
	}
}

// clean takes out what a terminal would obey: names come from clients.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}
