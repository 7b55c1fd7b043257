// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rescanEvery is how soon a pipe that another process made is read. Until
	// then its keys wait in it. Looking is cheaper than inotify, of which a
	// user may have few instances.
	rescanEvery = 250 * time.Millisecond
	// orphanFor is how long a pipe that has lost its name and its writers is
	// held for one who was about to open it.
	orphanFor = 2 * time.Second
	// fullRest is a pause after each full buffer: what one pipe can cost is
	// bounded, and who floods it loses its own keys.
	fullRest   = 5 * time.Millisecond
	bufferSize = 64 << 10
)

// ErrBusy says that another process reads the pipes of the folder.
var ErrBusy = errors.New("another egressd reads the keys")

// Dir reads the pipes of a folder into a Store. Its methods are safe for
// concurrent use.
type Dir struct {
	*Folder
	store *Store
	log   *slog.Logger

	mu      sync.Mutex
	pipes   map[uint64]*source // by inode
	refused map[uint64]bool    // pipes that could not be opened, which was logged
}

// source is a pipe that is read.
type source struct {
	name    string
	uid     uint32
	reader  *Reader
	keys    *Writer
	writers atomic.Bool
	alone   time.Time     // since when it has neither name nor writers
	done    chan struct{} // reading has ended
}

// PipeCounts says what came through one pipe.
type PipeCounts struct {
	Name    string
	UID     uint32 // who may write
	Writers bool   // somebody has it open, as far as is known
	WriterCounts
}

// OpenDir opens a folder to read its pipes into store; links that stand in for
// pipes become pipes again. ErrBusy is another process that does the same. The
// caller calls Close, after Run has ended.
func OpenDir(path string, store *Store, log *slog.Logger) (_ *Dir, err error) {
	folder, err := OpenFolder(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, folder.Close())
		}
	}()
	ok, err := folder.Take(Daemon)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("open key folder %s: %w", folder.Path(), ErrBusy)
	}
	if err := folder.Revive(); err != nil {
		return nil, err
	}
	d := &Dir{
		Folder: folder, store: store, log: log,
		pipes: make(map[uint64]*source), refused: make(map[uint64]bool),
	}
	return d, d.scan()
}

// Close closes the pipes and gives up the lock. Secrets stay in the store.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, s := range d.pipes {
		errs = append(errs, d.close(s))
	}
	return errors.Join(append(errs, d.Folder.Close())...)
}

// close ends the reading of s. The caller holds the lock.
func (d *Dir) close(s *source) error {
	delete(d.pipes, s.reader.Inode())
	err := s.reader.Close()
	<-s.done
	return errors.Join(err, s.keys.Close())
}

// Make makes a pipe, as Folder.Make does, and reads it.
func (d *Dir) Make(name string, uid uint32, shared bool) (path string, err error) {
	if path, err = d.Folder.Make(name, uid, shared); err != nil {
		return "", err
	}
	return path, d.scan()
}

// Run looks for new pipes and overwrites old secrets until ctx ends. The pipes
// that are known are read without it, too.
func (d *Dir) Run(ctx context.Context) error {
	t := time.NewTicker(rescanEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := d.scan(); err != nil {
			d.log.Warn("key folder cannot be read", "err", err)
		}
		d.store.Expire()
	}
}

// Pipes says what came through the pipes, by name.
func (d *Dir) Pipes() []PipeCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := make([]PipeCounts, 0, len(d.pipes))
	for _, s := range d.pipes {
		counts = append(counts, PipeCounts{s.name, s.uid, s.writers.Load(), s.keys.Counts()})
	}
	slices.SortFunc(counts, func(a, b PipeCounts) int { return strings.Compare(a.Name, b.Name) })
	return counts
}

// scan opens pipes that are new and closes those that nobody can write to any
// more.
func (d *Dir) scan() error {
	entries, err := d.Entries()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	named := make(map[uint64]bool, len(entries))
	for _, e := range entries {
		if !e.Pipe {
			continue
		}
		named[e.Inode] = true
		if s := d.pipes[e.Inode]; s != nil {
			s.uid = e.UID
			continue
		}
		if err := d.open(e); err != nil && !d.refused[e.Inode] {
			d.refused[e.Inode] = true
			d.log.Warn("keys of a pipe are not read", "pipe", e.Name, "err", err)
		}
	}
	for inode := range d.refused {
		if !named[inode] {
			delete(d.refused, inode)
		}
	}
	now := time.Now()
	for inode, s := range d.pipes {
		switch {
		case named[inode] || s.writers.Load():
			s.alone = time.Time{}
		case s.alone.IsZero():
			s.alone = now
		case now.Sub(s.alone) > orphanFor:
			if err := d.close(s); err != nil {
				d.log.Warn("pipe cannot be closed", "pipe", s.name, "err", err)
			}
		}
	}
	return nil
}

// open begins to read a pipe.
func (d *Dir) open(e Entry) error {
	r, err := d.OpenReader(e.Name)
	if err != nil {
		return err
	}
	if d.pipes[r.Inode()] != nil { // put in its place meanwhile
		return r.Close()
	}
	s := &source{name: e.Name, uid: e.UID, reader: r, keys: d.store.Writer(), done: make(chan struct{})}
	d.pipes[r.Inode()] = s
	go d.read(s)
	return nil
}

// read reads a pipe until it is closed.
func (d *Dir) read(s *source) {
	defer close(s.done)
	buffer := make([]byte, bufferSize)
	for {
		n, err := s.reader.Read(buffer, s.writers.Store)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				d.log.Warn("pipe cannot be read", "pipe", s.name, "err", err)
			}
			return
		}
		s.writers.Store(true)
		_, _ = s.keys.Write(buffer[:n]) // never fails
		clear(buffer[:n])
		if n == len(buffer) {
			time.Sleep(fullRest)
		}
	}
}
