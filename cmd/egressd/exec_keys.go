// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/egressd/egressd/cmd/egressd/internal/keeper"
	"github.com/egressd/egressd/cmd/egressd/internal/launch"
)

// commandKeys is where a command of exec writes its TLS keys.
type commandKeys struct {
	env  []string     // of the command
	keys *keeper.Keys // nil: it was not asked to
	stop context.CancelFunc
	done chan error
}

// commandKeys makes a folder with one pipe and tells the command of it. user
// is who runs the command; nil is the user of this process.
func (e *env) commandKeys(log *slog.Logger, user *syscall.Credential) (_ *commandKeys, err error) {
	c := &commandKeys{env: e.environ()}
	if _, own := launch.LogKeys(c.env, ""); own != "" {
		printError(e.stderr, fmt.Sprintf("the command writes its TLS keys to %s already, which stays so: HTTPS is not looked into", own))
		return c, nil
	}
	self, err := e.self()
	if err != nil {
		return nil, err
	}
	dir, err := keeper.OwnDir()
	if err != nil {
		return nil, err
	}
	if c.keys, err = keeper.OpenKeys(keeper.KeysConfig{Dir: dir, Self: self, Own: true, Logger: log}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// What root runs may go on as another user, who would fail at a pipe of
	// root's. Nobody learns the name but from the command.
	uid, shared := uint32(e.euid), e.euid == 0
	if user != nil {
		uid, shared = user.Uid, false
	}
	pipe, err := c.keys.Make("keys-"+rand.Text(), uid, shared)
	if err != nil {
		return nil, errors.Join(err, c.keys.Close(false))
	}
	c.env, _ = launch.LogKeys(c.env, pipe)
	running, stop := context.WithCancel(context.Background())
	c.stop, c.done = stop, make(chan error, 1)
	go func() { c.done <- c.keys.Run(running) }()
	return c, nil
}

// close ends the reading of keys. left says that some of the command goes on.
func (c *commandKeys) close(left bool) error {
	if c.keys == nil {
		return nil
	}
	c.stop()
	return errors.Join(<-c.done, c.keys.Close(left))
}
