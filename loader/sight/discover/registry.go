// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"maps"
	"os"
	"slices"
	"time"

	"github.com/egressd/egressd/loader/sight"
)

// file is an executable file that was looked at.
type file struct {
	id      fileID
	name    string
	state   state
	checked time.Time // when it was last opened
	targets []sight.Target
	handle  *os.File // while it has targets: what their Path leads to
	users   map[int]bool
	idle    time.Time // since when it has no users
	told    bool
}

// place gives the targets their place.
func (f *file) place(targets []sight.Target) {
	for _, t := range targets {
		t.Path = fdPath(int(f.handle.Fd()))
		t.Dev, t.Inode, t.Name = f.id.dev, f.id.inode, f.name
		f.targets = append(f.targets, t)
	}
}

func (f *file) close() {
	if f.handle != nil {
		f.handle.Close()
		f.handle = nil
	}
}

// has reports whether the file has this library, with its BIO_write or without.
func (f *file) has(lib sight.Library) (has, bio bool) {
	for _, t := range f.targets {
		if t.Library == lib {
			return true, hasProbe(t, bioWrite)
		}
	}
	return false, false
}

// process is one whose files are known.
type process struct {
	files map[fileID]bool // of those with targets
}

// registry knows which processes map which files. It is used by one goroutine.
type registry struct {
	files     map[fileID]*file
	processes map[int]*process
	told      int // files that were Found and are not Gone
	tell      func(Event)
}

func newRegistry() registry {
	return registry{files: map[fileID]*file{}, processes: map[int]*process{}, tell: func(Event) {}}
}

// harmless reports whether a file was looked at and has nothing to probe.
func (r *registry) harmless(id fileID) bool {
	f, ok := r.files[id]
	return ok && len(f.targets) == 0
}

// add makes a file known. It may take the place of one that had its number. A
// file with targets beyond the most that can be probed is not added.
func (r *registry) add(f *file, now time.Time) bool {
	r.forget(f.id)
	if len(f.targets) == 0 {
		if len(r.files) >= maxOthers+maxFiles {
			maps.DeleteFunc(r.files, func(_ fileID, f *file) bool { return len(f.targets) == 0 })
		}
	} else if with := func(f *file) bool { return len(f.targets) > 0 }; count(r.files, with) >= maxFiles {
		f.close()
		return false
	}
	f.users, f.idle = map[int]bool{}, now
	r.files[f.id] = f
	return true
}

func count(files map[fileID]*file, with func(*file) bool) (n int) {
	for _, f := range files {
		if with(f) {
			n++
		}
	}
	return n
}

// forget makes a file unknown, and Gone if it was Found. It returns the
// processes that mapped it.
func (r *registry) forget(id fileID) (users []int) {
	f, ok := r.files[id]
	if !ok {
		return nil
	}
	for pid := range f.users {
		users = append(users, pid)
		delete(r.processes[pid].files, id)
	}
	delete(r.files, id)
	if f.told {
		f.told = false
		r.told--
		r.tell(Event{Kind: Gone, Dev: id.dev, Inode: id.inode, Name: f.name})
	}
	f.close()
	slices.Sort(users)
	return users
}

// assign says that a process maps these files and no others. Some may be nil:
// they could not be looked at.
func (r *registry) assign(pid int, mapped map[fileID]*file) {
	p, ok := r.processes[pid]
	if !ok {
		p = &process{files: map[fileID]bool{}}
		r.processes[pid] = p
	}
	// libcrypto is of use beside a libssl that has no BIO_write of its own.
	crypto := false
	for _, f := range mapped {
		if f != nil {
			ssl, bio := f.has(sight.OpenSSL)
			crypto = crypto || ssl && !bio
		}
	}
	counts := func(f *file) bool {
		if f == nil || len(f.targets) == 0 {
			return false
		}
		only, _ := f.has(sight.LibCrypto)
		return crypto || !only || len(f.targets) > 1
	}
	for id := range maps.Clone(p.files) {
		if !counts(mapped[id]) {
			r.unuse(pid, id)
		}
	}
	for id, f := range mapped {
		if !counts(f) || r.files[id] != f {
			continue
		}
		p.files[id] = true
		f.users[pid] = true
		if !f.told {
			f.told = true
			r.told++
			r.tell(Event{Kind: Found, Dev: id.dev, Inode: id.inode, Name: f.name, Targets: slices.Clone(f.targets)})
		}
	}
}

func (r *registry) unuse(pid int, id fileID) {
	delete(r.processes[pid].files, id)
	if f, ok := r.files[id]; ok {
		delete(f.users, pid)
		if len(f.users) == 0 {
			f.idle = time.Now()
		}
	}
}

// drop says that a process has ended, or is not looked at any more.
func (r *registry) drop(pid int) {
	p, ok := r.processes[pid]
	if !ok {
		return
	}
	for id := range maps.Clone(p.files) {
		r.unuse(pid, id)
	}
	delete(r.processes, pid)
}

// expire forgets the files with targets that no process has mapped for so long.
func (r *registry) expire(now time.Time, linger time.Duration) {
	for id, f := range maps.Clone(r.files) {
		if len(f.targets) > 0 && len(f.users) == 0 && now.Sub(f.idle) >= linger {
			r.forget(id)
		}
	}
}

// close lets go of all files without a word.
func (r *registry) close() {
	for _, f := range r.files {
		f.close()
	}
	clear(r.files)
}
