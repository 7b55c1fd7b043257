// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/metrics/web"
	"github.com/egressd/egressd/policy"
)

// reloadState is how the last reading of the policy ended.
type reloadState struct {
	loaded time.Time // of the policy in force
	ok     bool
	err    error
}

// reloads reads the policy again whenever it is asked to.
func (d *Daemon) reloads(ctx context.Context, asked <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
			d.notify(d.cfg.Notifier.Reloading(d.clock.Now()))
			if err := d.Reload(); err != nil {
				d.log.Error("reload failed, the old policy stays in force", "err", err)
			}
			d.notify(d.cfg.Notifier.Ready(d.Summary()))
		}
	}
}

// Reload reads the policy and puts it in force. If that fails the old one
// stays; the error says why, and so do the events, the metrics and the status.
func (d *Daemon) Reload() error {
	if d.eventLog != nil {
		d.eventLog.Reopen() // who rotates it asks for a reload
	}
	err := d.tryReload()
	d.mu.Lock()
	d.reload.ok, d.reload.err = err == nil, err
	if err == nil {
		d.reload.loaded = time.Now()
	}
	d.mu.Unlock()
	event := policy.Event{At: d.clock.Now(), Kind: policy.EventReload, Detail: d.Summary()}
	if err != nil {
		event.Kind, event.Detail = policy.EventReloadFailed, err.Error()
	}
	d.events.Emit(event)
	return err
}

func (d *Daemon) tryReload() error {
	p, err := d.cfg.Policy()
	if err != nil {
		return err
	}
	old := d.engine.Policy()
	if err := unchanged(old, p); err != nil {
		return err
	}
	var change *web.Change
	if d.web != nil {
		if change, err = d.web.Prepare(p.Metrics.WebConfigFile); err != nil {
			return fmt.Errorf("metrics.web_config_file: %w", err)
		}
		defer change.Drop()
	}
	d.endpoints.resolve(context.Background(), p.Exits, time.Now())
	d.applying.Lock()
	defer d.applying.Unlock()
	d.tls.apply(p)
	d.probes.apply(p)
	// The engine first, so that what the programs begin to redirect finds its
	// budget; if they cannot be told, both go back.
	d.swap(p)
	if err := d.applyToKernel(p); err != nil {
		d.swap(old)
		if again := d.applyToKernel(old); again != nil {
			d.log.Error("the programs know parts of the new policy", "err", again)
		}
		return err
	}
	if err := change.Apply(); err != nil {
		d.log.Error("the metrics have the web configuration from before", "err", err)
	}
	d.names.forget()
	d.dns.apply(p)
	d.pace(p)
	d.log.Info("policy reloaded", "budgets", len(p.Budgets))
	return nil
}

// swap puts p in force for what waits and for what comes.
func (d *Daemon) swap(p *policy.Policy) {
	d.engine.Swap(p, d.clock.Now())
	d.gate.Reconfigured()
}

func (d *Daemon) applyToKernel(p *policy.Policy) error {
	redirects, err := d.redirect(p)
	if err != nil {
		return err
	}
	if err := d.planned(&redirects); err != nil {
		return err
	}
	return d.kernel.Exclude(p.Scope.Exclude)
}

// unchanged refuses a policy that asks for what only a start can do. To take
// half of it would be worse than to say so.
func unchanged(old, p *policy.Policy) error {
	for _, part := range []struct {
		key  string
		same bool
	}{
		{"scope.cgroups", slices.Equal(old.Scope.Cgroups, p.Scope.Cgroups)},
		{"tls.key_dir", old.TLS.KeyDir == p.TLS.KeyDir},
		{"tls.ca", old.TLS.CADir == p.TLS.CADir},
		{"tls.roots", old.TLS.Roots == p.TLS.Roots},
		{"metrics.listen", old.Metrics.Listen == p.Metrics.Listen},
		{"admin.socket", old.Admin == p.Admin},
		{"events.log", old.Events == p.Events},
		{"fleet", sameFleet(old.Fleet, p.Fleet)},
	} {
		if !part.same {
			return fmt.Errorf("%s has changed: that takes a restart", part.key)
		}
	}
	return nil
}

// Summary is the policy in force in a few words.
func (d *Daemon) Summary() string {
	n := len(d.engine.Policy().Budgets)
	if n == 1 {
		return "1 budget in force"
	}
	return fmt.Sprintf("%d budgets in force", n)
}
