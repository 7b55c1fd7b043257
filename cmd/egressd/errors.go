// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
)

// Exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

// usageError is a command line that says nothing sensible.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// statusError ends the process with the status of a command that was run. err
// is nil if the command itself has said all there is to say.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// failure is an error of a command that was understood. What the command line
// parser says by itself is none.
type failure struct {
	command string
	err     error
}

func (e *failure) Error() string { return e.err.Error() }
func (e *failure) Unwrap() error { return e.err }

// report prints err to w, one line for each thing that is wrong, and returns
// the exit status.
func report(w io.Writer, err error) int {
	if err == nil {
		return statusDone
	}
	var status *statusError
	var failed *failure
	var usage *usageError
	switch {
	case errors.As(err, &status):
		if status.err != nil {
			printError(w, status.err.Error())
		}
		return status.status
	case !errors.As(err, &failed), errors.As(err, &usage):
		printError(w, err.Error()+"; see egressd help")
		return statusUsage
	}
	printError(w, err.Error()+remedy(err, failed.command))
	return statusFailed
}

// printError prints text with the name of the program before each line.
func printError(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		// Nothing can be done about an error of standard error.
		_, _ = fmt.Fprintf(w, "egressd: %s\n", strings.TrimRight(line, "\n"))
	}
}

// remedy says what to do about err, unless its own text does.
func remedy(err error, command string) string {
	switch {
	case errors.Is(err, loader.ErrPrivileges):
		return fmt.Sprintf(": sudo egressd %s …", command)
	case errors.Is(err, loader.ErrBusy), errors.Is(err, admin.ErrRunning):
		return "; stop that one first, egressd status tells about it"
	case errors.Is(err, admin.ErrNotRunning):
		return "; start it with: sudo egressd run"
	case errors.Is(err, admin.ErrNotAllowed), errors.Is(err, fs.ErrPermission):
		return "; try: sudo egressd " + command
	case errors.Is(err, unix.EADDRINUSE):
		return "; stop what uses it, or set another address in the policy file"
	}
	return ""
}
