// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// Names of the hidden commands by which the binary runs itself.
const (
	OriginCommand  = "demo-origin"
	ClientsCommand = "demo-clients"
)

// originProcess is an origin in a process of its own.
type originProcess struct {
	cmd  *exec.Cmd
	in   io.Closer
	out  *bufio.Reader
	port int
}

// startOrigin runs an origin. The caller calls report or kill.
func (d *Demo) startOrigin(cfg OriginConfig) (*originProcess, error) {
	cmd := exec.Command(d.Self, OriginCommand,
		"--every", cfg.Every.String(),
		"--limit-once-after", cfg.LimitOnceAfter.String(),
		"--retry-after", cfg.RetryAfter.String(),
		"--burst", strconv.Itoa(cfg.Burst),
		"--shut="+strconv.FormatBool(cfg.Shut))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us alone
	cmd.Stderr = d.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start origin: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start origin: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start origin: %w", err)
	}
	o := &originProcess{cmd: cmd, in: in, out: bufio.NewReader(out)}
	var h hello
	line, err := o.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		o.kill()
		return nil, fmt.Errorf("start origin: %w", err)
	}
	o.port = h.Port
	return o, nil
}

// report ends the origin and returns what it received.
func (o *originProcess) report() (Record, error) {
	defer o.kill()
	if err := o.in.Close(); err != nil {
		return nil, fmt.Errorf("ask origin for its record: %w", err)
	}
	var r Record
	if err := json.NewDecoder(o.out).Decode(&r); err != nil {
		return nil, fmt.Errorf("read record of origin: %w", err)
	}
	return r, nil
}

func (o *originProcess) kill() {
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait()
}

// workers are processes that send requests.
type workers []*exec.Cmd

// startWorkers starts count processes, in cgroup unless that is nil. The
// caller stops them; so does the end of ctx.
func (d *Demo) startWorkers(ctx context.Context, cgroup *os.File, count int, args []string) (workers, error) {
	var all workers
	for range count {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if cgroup != nil {
			cmd.SysProcAttr.UseCgroupFD = true
			cmd.SysProcAttr.CgroupFD = int(cgroup.Fd())
		}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("start worker: %w", err), all.stop())
		}
		all = append(all, cmd)
	}
	return all, nil
}

// stop ends the workers and waits for them. That they do not end by themselves
// is no error.
func (w workers) stop() error {
	for _, cmd := range w {
		_ = cmd.Process.Kill()
	}
	var errs []error
	for _, cmd := range w {
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			errs = append(errs, fmt.Errorf("wait for worker: %w", err))
		}
	}
	return errors.Join(errs...)
}

// loopWorker is the command of one classic worker against port for span, with
// Python where there is one.
func (d *Demo) loopWorker(port int, span time.Duration) []string {
	seconds := strconv.FormatFloat(span.Seconds(), 'f', -1, 64)
	if python, err := exec.LookPath("python3"); err == nil {
		return []string{python, "-c", pythonWorker, originHost, strconv.Itoa(port), seconds}
	}
	return d.clients(port, 1, time.Second, span)
}

// clients is the command of a process with count clients, and more flags.
func (d *Demo) clients(port, count int, pause, span time.Duration, more ...string) []string {
	return append([]string{
		d.Self, ClientsCommand, "--count", strconv.Itoa(count),
		"--pause", pause.String(), "--for", span.String(),
		fmt.Sprintf("http://%s:%d/item", originHost, port),
	}, more...)
}
