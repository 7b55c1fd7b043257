// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are passed on. SIGPIPE is caught for another
// reason: uncaught, it would end this process when its standard error goes
// away; ignored, the command would inherit that.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE,
}

// Signals are the signals that this process gets and no longer dies of.
type Signals struct{ ch chan os.Signal }

// Catch begins to receive signals. Those that the caller ignores, as nohup
// does, stay ignored for this process and the command. The caller calls Stop
// when there is nothing left that must be cleaned up.
func Catch() *Signals {
	s := &Signals{ch: make(chan os.Signal, 16)}
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

// Stop gives the signals their old meaning.
func (s *Signals) Stop() { signal.Stop(s.ch) }

// Ended returns the first signal received so far that would have ended this
// process, or 0.
func (s *Signals) Ended() unix.Signal {
	for {
		select {
		case got := <-s.ch:
			if sig := got.(unix.Signal); sig != unix.SIGPIPE {
				return sig
			}
		default:
			return 0
		}
	}
}

// fromTerminal guesses whether the terminal sent s. It sends to the whole
// foreground process group, so the command has it already and must not get it
// twice. Go does not tell who sent a signal; while our group has the terminal
// the terminal is by far the likeliest.
func fromTerminal(s unix.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false // no controlling terminal
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
