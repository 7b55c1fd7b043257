// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// env is what commands have of the world around them. Tests make their own.
type env struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	getenv func(string) string
	// environ is the whole environment, for a command that is run.
	environ func() []string
	// self is the path of this binary, to run it again.
	self func() (string, error)
	// width is the number of characters in a line of stdout; 0 if it is no
	// terminal.
	width func() int
	euid  int
	pid   int
}

// hostEnv is the env of this process.
func hostEnv() *env {
	return &env{
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		getenv:  os.Getenv,
		environ: os.Environ,
		// The link rather than the path: it works after the binary was
		// replaced, as an upgrade does under a running daemon.
		self: func() (string, error) { return "/proc/self/exe", nil },
		width: func() int {
			size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
			if err != nil {
				return 0
			}
			return int(size.Col)
		},
		euid: os.Geteuid(),
		pid:  os.Getpid(),
	}
}
