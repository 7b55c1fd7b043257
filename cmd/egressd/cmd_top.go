// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/top"
)

// topOptions are the flags of top.
type topOptions struct {
	socket string
	every  time.Duration
	once   bool
}

func newTopCommand(e *env) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "watch exits and lanes live, in the terminal",
		Long: `top shows exits and lanes with what they send against their budgets, cooldowns
as they count down, who waits, and what happened last.

  q        quit          arrows up, down       scroll
  p        pause         arrows left, right    sort the lanes by something else
  r        reverse       page up, page down    scroll by a page

--once prints one frame of everything, for scripts. NO_COLOR in the environment
takes the colours away, a locale without UTF-8 all that is not ASCII, and where
TERM is dumb one frame is printed below the other.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			if o.every < minEvery {
				return usagef("--every %v: must be at least %v", o.every, minEvery)
			}
			return e.top(cmd.Context(), o)
		}),
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "print one frame and end")
	cmd.Flags().DurationVar(&o.every, "every", time.Second, "time between two frames")
	socketFlag(cmd, &o.socket)
	return cmd
}

// dumbHeight is the number of lines of a frame where nobody knows how many there
// are room for: that of a VT100.
const dumbHeight = 24

// minEvery bounds how often a daemon is asked.
const minEvery = 100 * time.Millisecond

func (e *env) top(ctx context.Context, o topOptions) error {
	cfg := top.Config{
		Daemon: admin.NewClient(o.socket), State: laneState, Every: o.every,
		Colour: e.getenv("NO_COLOR") == "", ASCII: !e.speaksUTF8(),
	}
	dumb := e.getenv("TERM") == "dumb"
	if o.once {
		frame, err := top.Once(ctx, cfg, e.width())
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(e.stdout, frame)
		return err
	}
	if e.width() == 0 {
		return errors.New("standard output is no terminal; --once prints one frame")
	}
	// Who cannot ask at all wants to know why, and not in a frame.
	if _, err := cfg.Daemon.Status(ctx); err != nil {
		return err
	}
	if dumb {
		ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		return top.Plain(ctx, cfg, e.stdout, e.width(), dumbHeight)
	}
	err := top.Run(ctx, cfg)
	if errors.Is(err, top.ErrNoTerminal) {
		return fmt.Errorf("%w; --once prints one frame", err)
	}
	return err
}
