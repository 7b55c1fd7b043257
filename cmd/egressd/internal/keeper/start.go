// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/userspace/keylog"
)

// CommandName is the command by which egressd runs itself as a keeper; the
// folder follows it.
const CommandName = "keeper"

// readyWithin bounds the wait for a keeper that was started.
const readyWithin = 5 * time.Second

// systemd is there while it is the host's service manager (sd_booted(3)).
const systemd = "/run/systemd/system"

// Start sees to it that the folder has a keeper. self is the path of this
// binary. If it starts one as a child, that is returned, and the caller may
// end it once no client is left; the child is reaped here.
//
// The keeper must outlive who starts it. It has a session of its own, where no
// signal of a terminal or to a process group reaches it. If outlive is set and
// systemd runs the host, it is a unit of its own, too: what is left of a
// service is ended with it.
func Start(folder *keylog.Folder, self string, outlive bool) (*os.Process, error) {
	if held, err := folder.Held(keylog.Keeper); held || err != nil {
		return nil, err
	}
	var process *os.Process
	if info, err := os.Stat(systemd); outlive && err == nil && info.IsDir() {
		if err := startUnit(folder, self); err != nil {
			return nil, err
		}
	} else if process, err = startChild(folder, self); err != nil {
		return nil, err
	}
	for end := time.Now().Add(readyWithin); ; time.Sleep(2 * time.Millisecond) {
		if held, err := folder.Held(keylog.Keeper); held || err != nil {
			return process, err
		}
		if time.Now().After(end) {
			return process, errors.New("start keeper of key folder: it did not begin to work")
		}
	}
}

// startChild starts a keeper as a child.
func startChild(folder *keylog.Folder, self string) (*os.Process, error) {
	cmd := exec.Command(self, CommandName, folder.Path())
	cmd.Args[0] = "egressd" // rather than the link that self may be
	cmd.Dir = "/"
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Standard input, output and error are /dev/null: a pipe of the caller's
	// would seem to be in use for as long as the keeper lives.
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start keeper of key folder: %w", err)
	}
	go func() { _ = cmd.Wait() }() // how it ends, its lock tells
	return cmd.Process, nil
}

// startUnit starts a keeper as a transient unit of systemd.
func startUnit(folder *keylog.Folder, self string) error {
	path, err := filepath.EvalSymlinks(self)
	if err != nil {
		// As of a binary that was replaced under a running daemon.
		if path, err = os.Readlink(self); err != nil {
			return fmt.Errorf("start keeper of key folder: %w", err)
		}
		path = strings.TrimSuffix(path, " (deleted)")
	}
	args := []string{
		"--quiet", "--collect", "--no-ask-password",
		// Unlike the name of one that is about to end.
		"--unit=egressd-keeper-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
		"--description=Reader of last resort for the key logs in " + folder.Path(),
		"--property=OOMScoreAdjust=" + oomScore,
	}
	for _, v := range environ() {
		args = append(args, "--setenv="+v)
	}
	args = append(args, "--", path, CommandName, folder.Path())
	if text, err := exec.Command("systemd-run", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("start keeper of key folder by systemd-run: %w: %s", err, firstLine(text))
	}
	return nil
}

// environ keeps the runtime of a keeper small.
func environ() []string { return []string{"GOMAXPROCS=1", "GOGC=20"} }

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// oomScore is that of a process that is ended late when memory is short.
const oomScore = "-900"

// Spare asks the kernel to end others first when memory is short, which takes
// CAP_SYS_RESOURCE.
func Spare() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0) }
