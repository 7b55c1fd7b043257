// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func (w *Watcher) currentScope() scope {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scope
}

// scan looks for processes that came or went unseen, where it is time for it.
func (w *Watcher) scan(now time.Time) {
	all := !now.Before(w.nextAll)
	if !all && now.Before(w.nextFresh) {
		return
	}
	p := w.pausesOf(w.rings == nil)
	w.nextFresh = now.Add(p.fresh)
	if all {
		w.lastAll, w.nextAll = now, now.Add(p.all)
		w.scans.Add(1)
	}
	alive := map[int]bool{}
	for i, pid := range w.currentScope().pids() {
		alive[pid] = true
		if _, seen := w.known.processes[pid]; !seen || all {
			w.refresh(pid, nil)
		}
		if w.rings != nil && i%drainedEvery == 0 {
			w.rings.drain(w.note)
		}
	}
	for pid := range maps.Clone(w.known.processes) {
		if !alive[pid] {
			w.known.drop(pid)
		}
	}
	w.known.expire(now, w.cfg.Linger)
}

// refreshDirty looks at the processes of which records tell.
func (w *Watcher) refreshDirty() {
	dirty := w.dirty
	w.dirty = map[int][]place{}
	scope := w.currentScope()
	for pid, places := range dirty {
		if scope.has(pid) {
			w.refresh(pid, places)
		} else {
			w.known.drop(pid)
		}
	}
}

// refresh looks at what a process maps now. places are those of records.
func (w *Watcher) refresh(pid int, places []place) {
	if pid == os.Getpid() {
		return
	}
	list, err := soon(&w.waiting, func() ([]mapping, error) { return processMaps(pid) }, nil)
	if errors.Is(err, errStuck) {
		w.leftOut.Add(1)
		return // it is what it was
	}
	if err != nil || len(list) == 0 {
		w.known.drop(pid) // it ended; its parent may not know it yet
		return
	}
	now := time.Now()
	seen := map[fileID]*file{}
	for _, m := range list {
		if _, ok := seen[m.file]; ok || m.file == w.own {
			continue
		}
		seen[m.file] = w.file(pid, m, w.unsure(m, places), now)
	}
	w.known.assign(pid, seen)
}

// unsure reports whether a record tells of a file at this mapping that no
// record told of before, and remembers which it is: a file that has the device
// and inode of a known one may be another.
func (w *Watcher) unsure(m mapping, places []place) bool {
	doubt := false
	for _, p := range places {
		if p.file == (recordFile{}) || p.addr < m.start || p.addr >= m.end || w.records[p.file] == m.file {
			continue
		}
		if len(w.records) >= maxRecords {
			clear(w.records)
		}
		w.records[p.file] = m.file
		doubt = true
	}
	return doubt
}

// file returns what is known of the file of a mapping, after a look at it if
// need be, or nil if it cannot be looked at.
func (w *Watcher) file(pid int, m mapping, doubt bool, now time.Time) *file {
	known := w.known.files[m.file]
	if known != nil && !doubt && (len(known.users) > 0 || now.Sub(known.checked) < trusted) {
		return known
	}
	found, err := soon(&w.waiting, func() (*file, error) { return look(pid, m, known) }, func(late *file) {
		if late != known {
			late.close()
		}
	})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH), errors.Is(err, errOther):
		return nil // the process ended, or maps something else now
	case err != nil:
		w.leftOut.Add(1)
		w.log.Debug("file not read", "file", printable(m.path), "pid", pid, "err", err)
		found = &file{id: m.file, name: printable(m.path)}
	}
	if found == known {
		known.checked = now
		return known
	}
	found.checked = now
	if !w.known.add(found, now) {
		w.leftOut.Add(1)
		return nil
	}
	return found
}

// look opens the file of a mapping and reads what it holds. If it is in the
// state of known, known itself is returned. It changes nothing: it may be left
// behind.
func look(pid int, m mapping, known *file) (*file, error) {
	f, err := openMapped(pid, m)
	if err != nil {
		return nil, err
	}
	st, err := fileState(f)
	if err != nil || known != nil && known.state == st {
		f.Close()
		return known, err
	}
	found := &file{id: m.file, name: printable(m.path), state: st, handle: f}
	if c, err := Inspect(f); err == nil {
		found.place(c.Targets)
	}
	if len(found.targets) == 0 {
		found.close()
	}
	return found, nil
}
