// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/diagnose"
)

// diagnoseOptions are the flags of diagnose.
type diagnoseOptions struct {
	destination string
	span        time.Duration
	socket      string
	json        bool
}

// maxWatch bounds for how long a daemon is watched.
const maxWatch = time.Hour

func newDiagnoseCommand(e *env) *cobra.Command {
	var o diagnoseOptions
	cmd := &cobra.Command{
		Use:   "diagnose [DESTINATION]",
		Short: "find out why requests are refused with 429",
		Long: `diagnose watches the daemon for some seconds, listens to single requests meanwhile,
asks what it remembers of the last hour, and weighs that against the causes that
refusals have, in this order: traffic that goes past egressd, 429s of egressd
itself, several processes that are each within the limit while their sum is not, a
limit that is written too high, an exit that others use, clients that answer
refusals with more requests, bursts by the windows of a clock, delays that grow
round by round, trouble of the exit, challenges of a WAF, TLS that nobody sees into.

Each finding says what was seen, how sure it is (certain: counted; likely: the
numbers fit it better than other causes; possible: there are few of them), and what
to do, with the lines for the policy file where lines help. Nothing needs a policy
for the destination: a budget that measures, as in
budgets: [{name: look, rate: 1000/s, mode: shadow}], is enough.

DESTINATION, a host, a lane or a label as egressd exits lists it, leaves the rest
out.`,
		Args: cobra.MaximumNArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if o.span < 0 || o.span > maxWatch {
				return usagef("--for %v: must be at least 0 and at most %v", o.span, maxWatch)
			}
			if len(args) > 0 {
				o.destination = args[0]
			}
			return e.diagnose(cmd.Context(), o)
		}),
	}
	cmd.Flags().DurationVar(&o.span, "for", 10*time.Second, "how long to watch; 0 for what is known already")
	jsonFlag(cmd, &o.json)
	socketFlag(cmd, &o.socket)
	return cmd
}

func (e *env) diagnose(ctx context.Context, o diagnoseOptions) error {
	// Ctrl-C is how one says that it was long enough; a second one ends all.
	watching, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	defer context.AfterFunc(watching, stop)()
	if e.width() > 0 && !o.json && o.span > 0 {
		// Who waits wants to know for what. Nothing can be done about an error of
		// standard error.
		_, _ = fmt.Fprintf(e.stderr, "egressd: watching for %v; Ctrl-C: long enough\n", o.span)
	}
	s, err := diagnose.Watch(ctx, admin.NewClient(o.socket), o.destination, o.span, watching.Done())
	if err != nil {
		return err
	}
	report := diagnose.Analyse(s)
	if o.json {
		return e.printJSON(report)
	}
	return report.Write(e.stdout)
}
