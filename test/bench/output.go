// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// startIn starts a command in the given cgroup, which has the file as its third,
// and ends when the file's other end is closed.
func startIn(cgroup, file *os.File, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }() // who asks it finds it gone
	return nil
}

// output runs a command to its end, in the given cgroup or, if that is nil, in
// the one of this process. It returns what the command printed, even if it
// failed; an error tells its last words.
func output(ctx context.Context, cgroup *os.File, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	if env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	if cgroup != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("running %s: %w: %s%s", name, err, lastBytes(out, 1000), lastBytes(stderr.Bytes(), 1000))
	}
	return out, nil
}
