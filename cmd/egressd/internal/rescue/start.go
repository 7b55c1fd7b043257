// SPDX-License-Identifier: Apache-2.0

package rescue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CommandName is the command by which egressd runs itself beside a daemon, whose
// process number follows it. Descriptor 3 is the heartbeat.
const CommandName = "rescue"

// HeartbeatFD is the descriptor that Run's file has in the process.
const HeartbeatFD = 3

// again is the pause before another process is started in place of one that
// ended.
const again = time.Second

// Keep keeps a process running beside this one until ctx ends; then it ends it.
// self is the path of this binary. failed is told when there is none for a while.
func Keep(ctx context.Context, self string, heartbeat *os.File, stderr io.Writer, failed func(error)) {
	for ctx.Err() == nil {
		if err := once(ctx, self, heartbeat, stderr); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func once(ctx context.Context, self string, heartbeat *os.File, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, self, CommandName, strconv.Itoa(os.Getpid()))
	cmd.Args[0] = "egressd" // rather than the link that self may be
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=20"} // a small runtime
	cmd.ExtraFiles = []*os.File{heartbeat}
	if file, is := stderr.(*os.File); is {
		cmd.Stderr = file // never a pipe that this process would have to read
	}
	// No signal of a terminal, or to the group of the daemon, stops it too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start rescue process: %w", err)
	}
	// Where Yama lets nobody but parents look into a process, this one may. There
	// may be no Yama.
	_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(cmd.Process.Pid), 0, 0, 0)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("rescue process: %w", err)
	}
	return errors.New("rescue process: it ended")
}
