// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/egressd/egressd/userspace/keylog"
)

// KeysConfig is what Keys are made of.
type KeysConfig struct {
	Dir    string // the folder of pipes; made if it is missing
	Self   string // path of this binary, which is run as the keeper
	Logger *slog.Logger
	// Own says that the folder is for this process alone and goes with it. If
	// it is not set, pipes stay when it ends, for the next daemon.
	Own bool
}

// Keys receives the keys of processes: a folder of pipes, the store that they
// are read into, and the keeper beside them. Its methods are safe for
// concurrent use.
type Keys struct {
	cfg    KeysConfig
	store  *keylog.Store
	dir    *keylog.Dir
	keeper *os.Process // if it is a child; used by one goroutine at a time
	told   Counts
}

// tendEvery is how often Keys looks whether the keeper lives, and writes down
// what came.
const tendEvery = time.Second

// OpenKeys opens the folder and begins to read. The caller calls Close, after
// Run has ended.
func OpenKeys(cfg KeysConfig) (*Keys, error) {
	k := &Keys{cfg: cfg, store: keylog.NewStore(keylog.Config{})}
	var err error
	if k.dir, err = keylog.OpenDir(cfg.Dir, k.store, cfg.Logger); err != nil {
		return nil, err
	}
	if err := k.keep(); err != nil {
		return nil, errors.Join(err, k.dir.Close())
	}
	return k, nil
}

// Store holds the keys.
func (k *Keys) Store() *keylog.Store { return k.store }

// Dir is the folder.
func (k *Keys) Dir() *keylog.Dir { return k.dir }

// Make makes a pipe for the user uid, or for everybody who knows its name, and
// returns its path. It is called before Run.
func (k *Keys) Make(name string, uid uint32, shared bool) (path string, err error) {
	if path, err = k.dir.Make(name, uid, shared); err != nil {
		return "", err
	}
	return path, k.keep()
}

// keep starts a keeper if there are pipes and none is there.
func (k *Keys) keep() error {
	if len(k.dir.Pipes()) == 0 {
		return nil
	}
	process, err := Start(k.dir.Folder, k.cfg.Self, !k.cfg.Own)
	if process != nil {
		k.keeper = process
	}
	return err
}

// Run looks after pipes and keeper until ctx ends.
func (k *Keys) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- k.dir.Run(ctx) }()
	t := time.NewTicker(tendEvery)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-t.C:
		}
		if err := k.keep(); err != nil {
			k.cfg.Logger.Warn("key folder has no keeper", "err", err)
		}
		if err := k.tell(); err != nil {
			k.cfg.Logger.Warn("counts of keys are not told", "err", err)
		}
	}
}

// Close stops reading and overwrites the keys. Clients go on unharmed: the
// keeper reads what they write. The folder of a process of its own is removed,
// unless left says that some of its clients go on; they find links to
// /dev/null there then.
func (k *Keys) Close(left bool) error {
	var errs []error
	if k.cfg.Own {
		errs = append(errs, k.dir.Change(k.dir.Retire))
	}
	errs = append(errs, k.dir.Close())
	k.store.Clear()
	if k.cfg.Own && !left {
		if k.keeper != nil {
			// It may have ended by itself.
			_ = k.keeper.Kill()
		}
		if err := os.RemoveAll(k.dir.Path()); err != nil {
			errs = append(errs, fmt.Errorf("remove key folder: %w", err))
		}
	}
	return errors.Join(errs...)
}

// OwnDir makes a folder for the keys of one process, on a file system in
// memory, and returns its path.
func OwnDir() (string, error) {
	var errs []error
	for _, base := range []string{"/run", "/dev/shm"} {
		dir, err := os.MkdirTemp(base, "egressd-keys-")
		if err != nil {
			errs = append(errs, fmt.Errorf("make key folder: %w", err))
			continue
		}
		folder, err := keylog.OpenFolder(dir)
		if err == nil {
			return dir, folder.Close()
		}
		errs = append(errs, err, os.RemoveAll(dir))
	}
	return "", errors.Join(errs...)
}

// Counts says what came through the pipes of a folder.
type Counts struct {
	Pipes    []keylog.PipeCounts
	Unwanted uint64 // sessions that nobody asked for
	Garbage  uint64 // lines that are none
}

// countsFile is where a daemon writes down its counts for others to read.
const countsFile = ".counts.json"

// tell writes down what came, if it changed.
func (k *Keys) tell() error {
	all := k.store.Counts()
	c := Counts{k.dir.Pipes(), all.Unwanted, all.Garbage}
	if reflect.DeepEqual(c, k.told) {
		return nil
	}
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write counts of keys: %w", err)
	}
	path := filepath.Join(k.dir.Path(), countsFile)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("write counts of keys: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write counts of keys: %w", err)
	}
	k.told = c
	return nil
}

// ReadCounts reads what the daemon of a folder wrote down last, at most a
// second ago if it lives. There are none before it did.
func ReadCounts(dir string) (Counts, error) {
	var c Counts
	text, err := os.ReadFile(filepath.Join(dir, countsFile))
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read counts of keys: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read counts of keys: %w", err)
	}
	return c, nil
}
