// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Canary is what became of one connect() of a process that was started to
// test the hooks.
type Canary struct {
	Cgroup string // directory of the attached cgroup
	Child  bool   // whether the process ran in a fresh cgroup below it
	// Gate is how the call left the hook, GateRedirected if all is well, and
	// "" if the hook did not see it at all.
	Gate string
}

// Redirected reports whether the hook led the connection to the listener.
func (c Canary) Redirected() bool { return c.Gate == GateRedirected }

const canaryPrefix = "egressd-canary-"

// Canary tests whether the hooks are effective. At each attached cgroup it
// runs the command argv in a fresh cgroup below, or in the cgroup itself if
// none can be made there. The command must connect to dest by TCP once and
// then exit with status 0, whether that succeeded or not.
//
// dest is named for the time of the test, loopback included, and goes through
// all the gates; neither gates nor destinations count it. It should be an
// address that nobody else uses, outside TokenPrefix. The listener finds it as
// the destination of a flow and only has to close the connection.
//
// Tests run one at a time. The error says why a test could not be made.
func (k *Kernel) Canary(ctx context.Context, argv []string, dest netip.AddrPort) ([]Canary, error) {
	k.canaryMu.Lock()
	defer k.canaryMu.Unlock()
	k.attachMu.Lock()
	var dirs []string
	for _, f := range k.cgroups {
		dirs = append(dirs, f.Name())
	}
	k.attachMu.Unlock()
	if len(dirs) == 0 {
		return nil, errors.New("canary: not attached")
	}

	// The programs look at the address only while the port is set.
	k.control.Canary.Bytes = dest.Addr().As16()
	atomic.StoreUint32(&k.control.CanaryPort, uint32(dest.Port()))
	defer atomic.StoreUint32(&k.control.CanaryPort, 0)
	var results []Canary
	for i, dir := range dirs {
		atomic.StoreUint32(&k.control.CanaryGate, 0)
		child := filepath.Join(dir, fmt.Sprintf("%s%d-%d", canaryPrefix, os.Getpid(), i))
		result := Canary{Cgroup: dir, Child: true}
		at := child
		if err := os.Mkdir(child, 0o755); err != nil {
			k.log.Debug("canary runs in the cgroup itself", "cgroup", dir, "err", err)
			result.Child, at = false, dir
		}
		err := runIn(ctx, at, argv)
		if result.Child {
			err = errors.Join(err, removeEmptied(child))
		}
		if err != nil {
			return results, fmt.Errorf("canary in %s: %w", at, err)
		}
		if gate := atomic.LoadUint32(&k.control.CanaryGate); gate > 0 && int(gate) <= len(gateNames) {
			result.Gate = gateNames[gate-1]
		}
		results = append(results, result)
	}
	return results, nil
}

// runIn runs a command that starts its life in the cgroup.
func runIn(ctx context.Context, cgroup string, argv []string) error {
	dir, err := openCgroup(cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	// The parent's death signal comes when the starting thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true,
		CgroupFD:    int(dir.Fd()),
		Pdeathsig:   unix.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w: %s", argv[0], err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// removeEmptied removes a cgroup whose last process has just been reaped; the
// kernel may take a moment to notice.
func removeEmptied(dir string) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := os.Remove(dir)
		if !errors.Is(err, unix.EBUSY) || wait > time.Second {
			return err
		}
		time.Sleep(wait)
	}
}

// removeCanaries removes the canary cgroups that a killed daemon left below
// dir. One that still has processes stays.
func (k *Kernel) removeCanaries(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		k.log.Warn("look for stale canary cgroups", "cgroup", dir, "err", err)
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), canaryPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			k.log.Warn("remove stale canary cgroup", "cgroup", dir, "name", e.Name(), "err", err)
		}
	}
}
