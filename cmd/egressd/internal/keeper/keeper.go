// SPDX-License-Identifier: Apache-2.0

// Package keeper sees to it that no client suffers from the pipe that it writes
// its keys to. A pipe without a reader makes who opens it wait and kills who
// writes to it; one whose reader is stopped fills up and makes writers wait.
// So beside the daemon, which reads the pipes, there is a small process that
// holds them open too and reads them into nothing while the daemon does not.
//
// Keys is all that a daemon needs to receive keys, that process included.
package keeper

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/egressd/egressd/userspace/keylog"
)

// Config says how a keeper goes about. The zero Config gives the defaults.
type Config struct {
	// Linger is how long it goes on while there is neither a daemon nor a
	// writer; a minute if 0.
	Linger time.Duration
}

const (
	// tick is the time between two looks at the pipes. A look costs some
	// microseconds for each.
	tick = 100 * time.Millisecond
	// stopped is how long a pipe must be filled before a daemon that lives is
	// taken for one that is stopped.
	stopped = 200 * time.Millisecond
	// grace is how long a pipe is held after it has lost its name: who was
	// about to open it then has done so.
	grace = 2 * time.Second
	// mostPerTick bounds what is read from one pipe at a look, in bytes, so
	// that one flooded pipe does not keep the others waiting.
	mostPerTick = 4 << 20

	defaultLinger = time.Minute
)

// keeper is the state of the process.
type keeper struct {
	folder *keylog.Folder
	linger time.Duration
	buffer []byte
	held   map[uint64]*pipe // by inode

	ending  bool      // another may keep the folder; only held pipes are left
	idle    time.Time // since when there is neither a daemon nor a writer
	nothing time.Time // since when there is no pipe
}

// pipe is one that is held.
type pipe struct {
	reader  *keylog.Reader
	named   bool      // it is in the folder
	writers bool      // as far as is known
	alone   time.Time // since when it has neither a name nor writers
	full    time.Time // since when it has been filled, and nobody has read
	pending int       // bytes at the last look
}

// Run keeps the pipes of the folder at path until they are gone, or nobody has
// needed them for a while; it then has left links to /dev/null in their place.
// It returns at once if another keeper is there. Where ctx ends, it leaves its
// place to the daemon if one lives, and else does not wait for a while. It
// never returns before the last client has closed its pipe, but where a daemon
// has it open too.
func Run(ctx context.Context, path string, cfg Config) (err error) {
	folder, err := keylog.OpenFolder(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if ok, err := folder.Take(keylog.Keeper); err != nil || !ok {
		return err
	}
	k := &keeper{
		folder: folder, linger: cfg.Linger, buffer: make([]byte, 64<<10),
		held: make(map[uint64]*pipe),
	}
	if k.linger <= 0 {
		k.linger = defaultLinger
	}
	t := time.NewTicker(tick)
	defer t.Stop()
	for !k.look(time.Now(), ctx.Err() != nil) {
		<-t.C
	}
	return k.close()
}

// look is one look at everything. It reports true when there is nothing left
// to do. leave asks to end soon. Nothing that goes wrong here is a reason to
// end: clients would be the worse for it. It is tried again at the next look.
func (k *keeper) look(now time.Time, leave bool) (done bool) {
	daemon, err := k.folder.Held(keylog.Daemon)
	daemon = daemon && err == nil
	if leave && daemon && !k.ending {
		return true // it holds the pipes, and will miss us
	}
	if !k.ending {
		k.scan()
	}
	writers := false
	for inode, p := range k.held {
		// The daemon does not know of pipes that were replaced before it came.
		k.tend(p, now, daemon && !k.ending)
		writers = writers || p.writers
		if lasts(p.alone, now, grace) {
			_ = p.reader.Close() // nobody can write to it any more
			delete(k.held, inode)
		}
	}
	if k.ending {
		return len(k.held) == 0
	}
	since(&k.idle, now, !daemon && !writers)
	since(&k.nothing, now, !daemon && len(k.held) == 0)
	if leave || lasts(k.idle, now, k.linger) || lasts(k.nothing, now, grace) {
		_ = k.end()
	}
	return false
}

// since notes in t when something began that is so now, or that it is not.
func since(t *time.Time, now time.Time, is bool) {
	if !is {
		*t = time.Time{}
	} else if t.IsZero() {
		*t = now
	}
}

// lasts reports whether what began at t, if it did, has lasted for d.
func lasts(t, now time.Time, d time.Duration) bool { return !t.IsZero() && now.Sub(t) >= d }

// scan takes hold of pipes that are new.
func (k *keeper) scan() {
	entries, err := k.folder.Entries()
	if err != nil {
		return // what is held stays so
	}
	named := make(map[uint64]bool, len(entries))
	for _, e := range entries {
		if !e.Pipe {
			continue
		}
		named[e.Inode] = true
		if k.held[e.Inode] != nil {
			continue
		}
		r, err := k.folder.OpenReader(e.Name)
		if err != nil {
			continue // gone again; if not, it is tried at the next look
		}
		if k.held[r.Inode()] != nil {
			_ = r.Close()
			continue
		}
		k.held[r.Inode()] = &pipe{reader: r}
		named[r.Inode()] = true
	}
	for inode, p := range k.held {
		p.named = named[inode]
	}
}

// tend does for one pipe what its reader leaves undone. daemon says that it
// has one that lives.
func (k *keeper) tend(p *pipe, now time.Time, daemon bool) {
	if daemon && !k.neglected(p, now) {
		return
	}
	p.full = time.Time{}
	p.writers = k.drain(p)
	since(&p.alone, now, !p.named && !p.writers)
}

// neglected reports whether the daemon, which lives, does not read the pipe,
// or whether nothing is lost by looking for writers, as a read does.
func (k *keeper) neglected(p *pipe, now time.Time) bool {
	n, err := p.reader.Pending()
	// Clients wait when every page has something in it. Where lines are long,
	// half of the bytes are then in use. What has become less is being read, if
	// not as fast as it is written.
	since(&p.full, now, err == nil && n > p.reader.Size()/4 && n >= p.pending)
	p.pending = n
	return lasts(p.full, now, stopped) || !p.named && n == 0
}

// drain empties a pipe and reports whether it has writers.
func (k *keeper) drain(p *pipe) (writers bool) {
	for total := 0; total < mostPerTick; {
		n, writers, err := p.reader.TryRead(k.buffer)
		clear(k.buffer[:n])
		if n == 0 || err != nil {
			return writers && err == nil
		}
		total += n
	}
	return true
}

// end puts links to /dev/null in the place of the pipes and leaves the folder,
// unless it is needed again. Pipes that clients have open are held on.
func (k *keeper) end() error {
	return k.folder.Change(func() error {
		daemon, err := k.folder.Held(keylog.Daemon)
		if err != nil || daemon {
			return err
		}
		k.scan() // with what was made since
		if err := k.folder.Retire(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// Who makes a pipe from now on starts a keeper for it.
		if err := k.folder.Release(keylog.Keeper); err != nil {
			return err
		}
		k.ending = true
		for _, p := range k.held {
			p.named = false
		}
		return nil
	})
}

// close lets go of all pipes.
func (k *keeper) close() error {
	var errs []error
	for _, p := range k.held {
		errs = append(errs, p.reader.Close())
	}
	return errors.Join(errs...)
}
