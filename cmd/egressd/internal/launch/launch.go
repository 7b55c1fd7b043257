// SPDX-License-Identifier: Apache-2.0

// Package launch runs one command as a careful shell would: with the caller's
// terminal, as the user who asked through sudo, passing signals on, and
// telling its end by the usual exit statuses.
package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit statuses of shells for commands that did not run.
const (
	StatusNotExecutable = 126
	StatusNotFound      = 127
)

// Command is what to run.
type Command struct {
	Args   []string // the program, found by $PATH, and its arguments
	Env    []string
	Dir    string // "" for the current one
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Cgroup, unless nil, is the folder of the cgroup v2 in which the command
	// is born: it does nothing outside of it, not even its first instruction
	// (Linux 5.7).
	Cgroup *os.File
	// User, unless nil, is who runs it.
	User *syscall.Credential
}

// Error is a command that could not be started, and the exit status that a
// shell would give it.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Process is a command that runs.
type Process struct{ cmd *exec.Cmd }

// Start starts c. The caller calls Wait. An error is an *Error.
//
// The command shares the caller's process group, so that job control of the
// shell stops and continues both, and Ctrl-C reaches it without help.
func Start(c Command) (*Process, error) {
	name, err := exec.LookPath(c.Args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) { // a shell would run it from "." in $PATH too
		return nil, startError(c.Args[0], err)
	}
	cmd := exec.Command(name, c.Args[1:]...)
	cmd.Args[0] = c.Args[0]
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.User}
	if c.Cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(c.Cgroup.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, startError(c.Args[0], err)
	}
	return &Process{cmd: cmd}, nil
}

func startError(name string, err error) error {
	status := StatusNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = StatusNotFound
	}
	// The cause without the wrapping of os/exec, which names the program again.
	var lookup *exec.Error
	var path *fs.PathError
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	if errors.As(err, &path) {
		err = path.Err
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		err = errors.New("command not found")
	case errors.Is(err, unix.ENOEXEC):
		err = fmt.Errorf("%w (a script needs a first line like #!/bin/sh)", err)
	}
	return &Error{Status: status, Err: fmt.Errorf("run %s: %w", name, err)}
}

// Wait waits for the command's end, passes signals on to it meanwhile, and
// returns its exit status as a shell would: 128 and the number of the signal,
// if one ended it.
func (p *Process) Wait(signals *Signals) (int, error) {
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	for {
		select {
		case s := <-signals.ch:
			if s := s.(unix.Signal); s != unix.SIGPIPE && !fromTerminal(s) {
				// It may have ended already, which Wait tells in a moment.
				_ = p.cmd.Process.Signal(s)
			}
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, fmt.Errorf("wait for %s: %w", p.cmd.Args[0], err)
			}
			status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}
