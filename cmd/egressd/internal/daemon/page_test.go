// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/events"
	"github.com/egressd/egressd/userspace/mono"
)

func TestPageHosts(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for listen, want := range map[string][]string{
		"127.0.0.1:9477":       {machine},
		"[::1]:9477":           {machine},
		":9477":                {machine},
		"":                     {machine},
		"metrics.example:9477": {"metrics.example", machine},
	} {
		if got := pageHosts(listen); !slices.Equal(got, want) {
			t.Errorf("pageHosts(%q) = %q, want %q", listen, got, want)
		}
	}
}

// What an error quotes of a policy file is not for everybody.
func TestPageEvents(t *testing.T) {
	d := &Daemon{clock: mono.At(1000), events: events.New(0)}
	defer d.events.Close()
	d.events.Emit(policy.Event{At: 900, Kind: policy.EventReloadFailed, Detail: "egressd.yml:3: password: hunter2"})
	d.events.Emit(policy.Event{At: 950, Kind: policy.EventPenalty, Lane: "a/b/c", Wait: time.Second, Detail: "limited"})
	got := pageSource{d}.Events(10)
	if len(got) != 2 || got[0].Kind != "reload_failed" || got[0].Detail != "egressd status says why" {
		t.Errorf("got %+v, want no word of the file", got)
	}
	if e := got[1]; e.Mono != 950 || e.Lane != "a/b/c" || e.Wait != time.Second || e.Detail != "limited" || time.Since(e.At) > time.Minute {
		t.Errorf("got %+v", e)
	}
}
