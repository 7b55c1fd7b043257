// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process of a test.
type process struct {
	cmd    *exec.Cmd
	stdout buffer
	stderr buffer
	ended  chan struct{} // closed when the process has been waited for
}

// how says how a process is started.
type how struct {
	in    *group   // the cgroup that it is born in; nil: the test's own
	env   []string // further variables
	stdin string
	extra *os.File // descriptor 3
}

// start starts a process that is killed at the end of the test at the latest.
func start(t testing.TB, h how, args ...string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(append(os.Environ(), markerName+"="+here.marker), h.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if h.stdin != "" {
		p.cmd.Stdin = bytes.NewBufferString(h.stdin)
	}
	if h.extra != nil {
		p.cmd.ExtraFiles = []*os.File{h.extra}
	}
	// Whoever outlives the process must not keep Wait waiting for its output.
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h.in != nil {
		p.cmd.SysProcAttr.UseCgroupFD, p.cmd.SysProcAttr.CgroupFD = true, int(h.in.file.Fd())
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %q: %v", args, err)
	}
	go func() {
		// The status is read from ProcessState.
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends s to the process alone.
func (p *process) signal(t testing.TB, s unix.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %v to %q: %v", s, p.cmd.Args, err)
	}
}

// kill ends the process, and waits for it. It may have ended already.
func (p *process) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err) // our own child: there is no other error
	}
	<-p.ended
}

// wait waits for the end and returns the exit status, 128 and its number if a
// signal ended the process.
func (p *process) wait(t testing.TB, patience time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("%q did not end within %v\n%s", p.cmd.Args, patience, p.stderr.String())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// mustSucceed waits for the end and fails the test unless the status is 0.
func (p *process) mustSucceed(t testing.TB, patience time.Duration) {
	t.Helper()
	if status := p.wait(t, patience); status != 0 {
		t.Fatalf("%q: got exit status %d, want 0\n%s%s", p.cmd.Args, status, p.stdout.String(), p.stderr.String())
	}
}

// buffer collects output and may be read while it does.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
