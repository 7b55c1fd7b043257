// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

// maxListened bounds the events that are kept of single requests: some minutes of
// a busy host. What comes after them is told by counts alone.
const maxListened = 200_000

// errFull ends the listening.
var errFull = errors.New("enough is known")

// listen begins to hear of single requests, and returns what ends that and tells
// what was heard. A daemon that does not tell is no error: counts remain.
func (s *Snapshot) listen(ctx context.Context, d Daemon) (stop func() Stream) {
	ctx, cancel := context.WithCancel(ctx)
	heard := Stream{From: time.Now(), Commands: map[uint32]string{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Why it ended does not matter: it is To that says until when it heard.
		_ = d.Events(ctx, true, true, heard.take)
		if heard.To.IsZero() {
			heard.To = time.Now()
		}
	}()
	return func() Stream {
		cancel()
		<-done
		return heard
	}
}

// take takes one event.
func (h *Stream) take(e admin.Event) error {
	switch e.Kind {
	case "lost":
		h.To = time.Now() // from somewhere before on: what was heard is no whole
		if n := len(h.Events); n > 0 {
			h.To = h.Events[n-1].Time
		}
		return errFull
	case string(policy.EventDispatch), string(policy.EventAsked):
	default:
		return nil
	}
	if e.PID != 0 {
		if _, known := h.Commands[e.PID]; !known {
			h.Commands[e.PID] = commandOf(e.PID)
		}
	}
	h.Events = append(h.Events, e)
	if len(h.Events) == maxListened {
		h.To = e.Time
		return errFull
	}
	return nil
}

// commandOf is the name of a process and, where that is an interpreter's, of its
// script: "python3 worker.py". Arguments are left out, since they may be secret.
// "" if the process is gone.
func commandOf(pid uint32) string {
	dir := "/proc/" + strconv.FormatUint(uint64(pid), 10)
	name, err := os.ReadFile(dir + "/comm")
	if err != nil {
		return ""
	}
	args, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		args = nil
	}
	return command(strings.TrimSpace(string(name)), string(args))
}

// interpreters are the beginnings of the names of programs whose first argument
// tells more than they do.
var interpreters = []string{"python", "node", "ruby", "perl", "php", "sh", "bash", "dash", "deno", "bun", "pypy"}

// maxScript bounds the name of a script.
const maxScript = 40

// command is the name of a process out of its comm and its arguments, which are
// ended by NUL each.
func command(comm, cmdline string) string {
	args := strings.Split(cmdline, "\x00")
	if len(args) < 2 || args[1] == "" || strings.HasPrefix(args[1], "-") {
		return comm
	}
	program := filepath.Base(args[0])
	for _, name := range interpreters {
		rest, is := strings.CutPrefix(program, name)
		if !is || strings.Trim(rest, "0123456789.") != "" {
			continue
		}
		script := filepath.Base(args[1])
		if len(script) > maxScript {
			script = script[:maxScript]
		}
		return comm + " " + script
	}
	return comm
}
