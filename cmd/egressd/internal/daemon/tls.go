// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/cmd/egressd/internal/keeper"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/keylog"
	"github.com/egressd/egressd/userspace/terminate"
	"github.com/egressd/egressd/userspace/tlsread"
)

// tlsSources are what it takes to look into TLS connections. Each is opened when
// a policy first asks for it, and stays: what is open already costs nothing.
type tlsSources struct {
	log  *slog.Logger
	self string // path of this binary

	given *keeper.Keys // by who made the daemon, whose it stays
	keys  atomic.Pointer[keeper.Keys]
	end   atomic.Pointer[terminate.Terminator]

	mu      sync.Mutex
	running context.Context // of tasks; nil before Run
	waits   sync.WaitGroup
}

// furthest is how far a policy looks into TLS anywhere.
func furthest(p *policy.Policy) policy.TLSMode {
	mode := p.TLS.Mode
	for _, b := range p.Budgets {
		if b.Mode != policy.Off {
			mode = max(mode, b.TLS)
		}
	}
	return mode
}

// apply opens what the policy asks for. What cannot be had is told; then those
// connections are passed through, which is no reason not to start.
func (t *tlsSources) apply(p *policy.Policy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mode := furthest(p)
	if mode >= policy.Observe && p.TLS.KeyLog && t.keys.Load() == nil {
		if err := t.openKeys(p.TLS.KeyDir); err != nil {
			t.log.Warn("keys of TLS sessions cannot be received: HTTPS of processes that log them is not looked into", "err", err)
		}
	}
	if mode >= policy.Terminate {
		if err := t.openAuthority(p); err != nil {
			t.log.Warn("TLS cannot be ended here: these connections are passed through", "err", err)
		}
	}
}

func (t *tlsSources) openKeys(dir string) error {
	keys := t.given
	if keys == nil {
		var err error
		if keys, err = keeper.OpenKeys(keeper.KeysConfig{Dir: dir, Self: t.self, Logger: t.log}); err != nil {
			return err
		}
	}
	t.keys.Store(keys)
	t.start(keys)
	return nil
}

// start runs keys that were opened here. The caller holds mu.
func (t *tlsSources) start(keys *keeper.Keys) {
	if t.running == nil || keys == nil || keys == t.given {
		return
	}
	ctx := t.running
	t.waits.Go(func() {
		if err := keys.Run(ctx); err != nil {
			t.log.Warn("keys of TLS sessions are no longer received", "err", err)
		}
	})
}

func (t *tlsSources) openAuthority(p *policy.Policy) error {
	if t.end.Load() != nil {
		return nil // another authority takes a restart: clients hold leaves of this one
	}
	ca, err := terminate.OpenAuthority(p.TLS.CADir, nil)
	if errors.Is(err, terminate.ErrNoAuthority) {
		return fmt.Errorf("no certificate authority in %s: make one with egressd ca init", p.TLS.CADir)
	}
	if err != nil {
		return err
	}
	// uTLS would write the keys of every connection there. Commands have their
	// environment already.
	if err := os.Unsetenv("SSLKEYLOGFILE"); err != nil {
		return fmt.Errorf("leave the key log alone: %w", err)
	}
	cfg := terminate.Config{CA: ca, Logger: t.log}
	if p.TLS.Roots != "" {
		if cfg.ExtraRoots, err = os.ReadFile(p.TLS.Roots); err != nil {
			return fmt.Errorf("read tls.roots: %w", err)
		}
	}
	end, err := terminate.New(cfg)
	if err != nil {
		return err
	}
	t.end.Store(end)
	return nil
}

// run serves until ctx ends.
func (t *tlsSources) run(ctx context.Context) error {
	t.mu.Lock()
	t.running = ctx
	t.start(t.keys.Load())
	t.mu.Unlock()
	<-ctx.Done()
	t.waits.Wait()
	return nil
}

// close gives back what was opened here.
func (t *tlsSources) close() error {
	if end := t.end.Load(); end != nil {
		end.Close()
	}
	if keys := t.keys.Load(); keys != nil && keys != t.given {
		return keys.Close(true)
	}
	return nil
}

// Ready implements proxy.Keys.
func (t *tlsSources) Ready() bool { return t.keys.Load() != nil }

// Find implements proxy.Keys.
func (t *tlsSources) Find(random [32]byte) *tlsread.Secrets {
	if keys := t.keys.Load(); keys != nil {
		return keys.Store().Find(random)
	}
	return nil
}

// Forget implements proxy.Keys.
func (t *tlsSources) Forget(random [32]byte) {
	if keys := t.keys.Load(); keys != nil {
		keys.Store().Forget(random)
	}
}

// Await implements proxy.Keys.
func (t *tlsSources) Await(random [32]byte, ready func()) (cancel func()) {
	if keys := t.keys.Load(); keys != nil {
		return keys.Store().Await(random, ready)
	}
	return func() {}
}

// Expects implements proxy.Keys.
func (t *tlsSources) Expects(pid uint32) bool {
	keys := t.keys.Load()
	if keys == nil {
		return false
	}
	path, ok := keylog.Logs(int(pid))
	return ok && t.ours(path, keys)
}

// ours says that a file is one of the pipes. Under another root or through a
// link the path may differ: then the name of the pipe decides.
func (t *tlsSources) ours(path string, keys *keeper.Keys) bool {
	dir := keys.Dir().Path()
	if strings.HasPrefix(path, dir+"/") {
		return true
	}
	name := filepath.Base(path)
	return slices.ContainsFunc(keys.Dir().Pipes(), func(p keylog.PipeCounts) bool { return p.Name == name })
}
