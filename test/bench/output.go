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
