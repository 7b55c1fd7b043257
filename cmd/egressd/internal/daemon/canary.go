// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
)

// canaryDest is the address that the canary asks for: on the loopback, where
// nobody listens and no token lies, so that nothing leaves the host whatever
// goes wrong.
var canaryDest = netip.MustParseAddrPort("127.102.0.1:1")

// firstCanary tests the hooks right after they were attached. The accept loop
// may not have come round yet for the first time, so a failure counts only if
// it lasts.
func (d *Daemon) firstCanary(ctx context.Context) {
	for end := time.Now().Add(canaryTimeout); ; {
		result := d.test(ctx)
		if ctx.Err() != nil {
			return
		}
		if result.OK || time.Now().After(end) {
			d.settle(result)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tryCanary tests the hooks and tells when the answer has changed.
func (d *Daemon) tryCanary(ctx context.Context) {
	if result := d.test(ctx); ctx.Err() == nil {
		d.settle(result)
	}
}

// test finds out by a process of the scope whether the hooks are effective.
func (d *Daemon) test(ctx context.Context) admin.Canary {
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	results, err := d.kernel.Canary(ctx, append(slices.Clone(d.cfg.Canary), canaryDest.String()), canaryDest)
	if err == nil {
		err = judge(results)
	}
	result := admin.Canary{At: time.Now(), OK: err == nil}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

// settle takes note of a test.
func (d *Daemon) settle(now admin.Canary) {
	d.mu.Lock()
	before := d.canary
	d.canary = now
	d.mu.Unlock()
	first := before.At.IsZero()
	if before.OK == now.OK && !first {
		return
	}
	detail, status := "connections are redirected", d.Summary()
	switch {
	case !now.OK:
		detail = now.Error
		status = "self-test failed: " + now.Error
		d.log.Error("self-test failed: connections go untouched", "err", now.Error)
	case !first:
		d.log.Info("self-test works again")
	}
	d.notify(d.cfg.Notifier.Status(status))
	d.events.Emit(policy.Event{At: d.clock.Now(), Kind: policy.EventCanary, Detail: detail})
}

// judge makes an error of canaries that did not reach the listener.
func judge(results []loader.Canary) error {
	var errs []error
	for _, r := range results {
		switch {
		case r.Redirected():
		case r.Gate == "":
			errs = append(errs, fmt.Errorf("the hook at %s did not see the connection", r.Cgroup))
		default:
			errs = append(errs, fmt.Errorf("the hook at %s let the connection go untouched by gate %s", r.Cgroup, r.Gate))
		}
	}
	return errors.Join(errs...)
}
