// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/test/vm/frame"
)

const (
	memory     = "2048"           // MiB
	bootTime   = 90 * time.Second // until the first run begins; 5 s on a quiet machine
	limitGrace = 10 * time.Second // for what is over its time limit to tell where it stood
)

// kernelArgs are the kernel's command line. A panic ends the machine. Watchdogs
// are off: they take a host that is busy elsewhere for a kernel that hangs, and
// a machine that hangs is found by its time limits.
var kernelArgs = []string{
	"console=ttyS0", "loglevel=7", "panic=-1", "nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1", "mitigations=off",
}

// machine is one boot of a kernel.
type machine struct {
	kernel    fetched
	initramfs string
	console   string // file that gets what the kernel says
	limit     time.Duration
}

// boot runs the machine until it is off and passes on its frames. It returns the
// processor time that it took. The error says why it ended in another way than
// by itself.
func (m machine) boot(each func(frame.Frame)) (cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		// Emulation works everywhere, on hosts that are guests themselves
		// too; with more than one processor it is not reliable there. A
		// processor that can less is emulated faster.
		"-accel", "tcg", "-cpu", "Nehalem", "-smp", "1", "-m", memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(m.kernel.dir, "vmlinuz"),
		"-initrd", m.initramfs,
		"-append", strings.Join(kernelArgs, " "),
		"-serial", "file:"+m.console,
		"-serial", "stdio",
	)
	// It dies with this process, or rather with this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	readErr := frame.Read(out, each)
	err = cmd.Wait()
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	switch {
	case ctx.Err() != nil:
		return cpu, fmt.Errorf("not off after %v: the machine hangs", m.limit)
	case err != nil:
		return cpu, fmt.Errorf("qemu: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return cpu, readErr
}
