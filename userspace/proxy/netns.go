// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/dial"
)

// Enroller is told about namespaces that have a listener.
type Enroller interface {
	Enrol(netns uint64, port uint16, backlog uint32) error
	Withdraw(netns uint64) error
}

// netnsID is the identity of a namespace file: the cookie is only known once
// the namespace was entered.
type netnsID struct{ dev, ino uint64 }

// NetnsWatcher keeps a listener in each network namespace, other than the
// daemon's own, that processes of the scope live in. Until it has noticed one,
// connections from there go untouched.
type NetnsWatcher struct {
	Proxy   *Proxy
	Enrol   Enroller
	Cgroups []string // directories of the cgroups in scope
	Logger  *slog.Logger

	own   netnsID
	known map[netnsID]*dial.Netns // nil: could not be entered
}

// Run looks for namespaces every so often until ctx ends.
func (w *NetnsWatcher) Run(ctx context.Context, every time.Duration) error {
	own, err := netnsOf("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("identify own network namespace: %w", err)
	}
	w.own, w.known = own, make(map[netnsID]*dial.Netns)
	defer func() {
		for _, ns := range w.known {
			ns.Release()
		}
	}()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		w.scan()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (w *NetnsWatcher) scan() {
	seen := make(map[netnsID]bool)
	for _, dir := range w.Cgroups {
		eachProcess(dir, func(pid string) {
			path := "/proc/" + pid + "/ns/net"
			id, err := netnsOf(path)
			if err != nil || id == w.own || seen[id] {
				return // the process is gone, or its namespace is known
			}
			seen[id] = true
			if _, ok := w.known[id]; !ok {
				w.known[id] = w.enter(path)
			}
		})
	}
	for id, ns := range w.known {
		if !seen[id] {
			delete(w.known, id)
			w.leave(ns)
		}
	}
}

// enter opens a listener in a namespace. It returns nil if that failed, which
// is not tried again while the namespace lives.
func (w *NetnsWatcher) enter(path string) *dial.Netns {
	ns, err := dial.OpenNetns(path)
	if err == nil {
		var port uint16
		if _, port, err = w.Proxy.Listen(ns); err == nil {
			if err = w.Enrol.Enrol(ns.Cookie, port, w.Proxy.Backlog()); err == nil {
				w.Logger.Info("network namespace is served", "netns", ns.Cookie)
				return ns
			}
			w.Proxy.Withdraw(ns.Cookie)
		}
		ns.Release()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		w.Logger.Warn("network namespace stays untouched", "path", path, "err", err)
	}
	return nil
}

func (w *NetnsWatcher) leave(ns *dial.Netns) {
	if ns == nil {
		return
	}
	if err := w.Enrol.Withdraw(ns.Cookie); err != nil {
		w.Logger.Warn("network namespace stays enrolled", "netns", ns.Cookie, "err", err)
	}
	w.Proxy.Withdraw(ns.Cookie)
	ns.Release()
}

func netnsOf(path string) (netnsID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return netnsID{}, err
	}
	return netnsID{st.Dev, st.Ino}, nil
}

// eachProcess calls f with the id of each process in the cgroup dir and below.
// What vanishes meanwhile is passed over.
func eachProcess(dir string, f func(pid string)) {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		procs, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer procs.Close()
		for lines := bufio.NewScanner(procs); lines.Scan(); {
			f(lines.Text())
		}
		return nil
	})
}
