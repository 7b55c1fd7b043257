// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// Write prints an explanation for people. state says in words how a lane is.
func Write(w io.Writer, e *admin.Explanation, state func(admin.Lane) string) error {
	var out strings.Builder
	row := func(indent, name, format string, args ...any) {
		fmt.Fprintf(&out, "%s%-9s%s\n", indent, name, clean(fmt.Sprintf(format, args...)))
	}
	row("", "request", "%s %s", e.Method, e.URL)
	row("", "exit", "%s", e.Exit)
	if e.Address != "" {
		row("", "address", "%s", e.Address)
	}
	led := "yes"
	if !e.Led {
		led = "NO, it goes untouched"
	}
	row("", "shaped", "%s: %s", led, e.LedWhy)
	if e.Inside != "" {
		row("", "inside", "%s", e.Inside)
	}
	for _, note := range e.Notes {
		row("", "note", "%s", note)
	}
	if len(e.Budgets) == 0 {
		out.WriteString("\nThe policy has no budgets.\n")
	}
	for i := range e.Budgets {
		b := &e.Budgets[i]
		out.WriteByte('\n')
		if !b.Matches {
			row("", "no", "%s: %s", b.Budget, b.Why)
			continue
		}
		row("", "MATCHES", "%s: %s", b.Budget, b.Why)
		row("  ", "allows", "%s", b.Allows)
		row("  ", "lane", "%s", b.Lane)
		switch {
		case b.State != nil:
			row("  ", "state", "%s", state(*b.State))
			row("  ", "ahead", "%s", ahead(b))
			row("  ", "next", "%s", when(b.Wait, b.Answer != "")+answered(b.Answer))
		case e.Next != nil:
			row("  ", "state", "nothing has come to it yet")
		}
	}
	if e.Next != nil {
		fmt.Fprintf(&out, "\n%s\n", clean(sentence(e.Next)))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// ahead is who goes before.
func ahead(b *admin.Matched) string {
	if b.Ahead == 0 {
		return "nobody"
	}
	text := fmt.Sprint(b.Ahead)
	if b.AtMost {
		text = "at most " + text + ", since clients take turns"
	}
	var who []string
	for i, p := range b.Before {
		if i == most {
			who = append(who, fmt.Sprintf("and %d more processes", len(b.Before)-most))
			break
		}
		who = append(who, fmt.Sprintf("%s (pid %d) with %d", p.Command, p.PID, p.Waiting))
	}
	if who != nil {
		text += ": " + strings.Join(who, ", ")
	}
	return text
}

// when is a wait in words.
func when(seconds float64, least bool) string {
	switch {
	case seconds <= 0 && least:
		return "nobody can say when"
	case seconds <= 0:
		return "now"
	case least:
		return "in " + short(seconds) + " at least"
	}
	return "in " + short(seconds)
}

func answered(what string) string {
	if what == "" {
		return ""
	}
	return ": it waits for the answer to " + what
}

// sentence is what people came for.
func sentence(n *admin.Next) string {
	by := ""
	if n.Lane != "" {
		by = ", by lane " + n.Lane
	}
	switch n.Outcome {
	case admin.NextUntouched:
		return "It would go untouched: no budget holds what does not come here."
	case admin.NextUnlimited:
		return "It would go at once: no budget in force matches."
	case admin.NextNow:
		return "It would go at once" + by + "."
	case admin.NextRefused:
		text := "It would be refused (" + n.Reason + ")" + by + ": "
		if n.Reason == "max_wait" {
			return text + fmt.Sprintf("it would have to wait %s, and may wait %s.", short(n.Wait), short(n.MaxWait))
		}
		return text + "too many wait already. Try again in " + short(n.Wait) + "."
	}
	if n.MaxWait == 0 {
		return fmt.Sprintf("It would go %s%s.", when(n.Wait, n.AtLeast), by)
	}
	return fmt.Sprintf("It would go %s%s; it may wait %s.", when(n.Wait, n.AtLeast), by, short(n.MaxWait))
}

// short writes seconds with as many digits as matter.
func short(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
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
