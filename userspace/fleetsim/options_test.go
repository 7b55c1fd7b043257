// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Cut{
		"30s+10s/25%": {30 * sec, 10 * sec, 0.25}, "0s+1m/0.5": {0, time.Minute, 0.5}, "5s+5s": {5 * sec, 5 * sec, 1},
	} {
		if got, err := ParseCut(text); got != want || err != nil {
			t.Errorf("ParseCut(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]Fault{
		"30s": {At: 30 * sec, For: sec}, "30s+0s/empty": {At: 30 * sec, Memory: Empty}, "1m/kept": {At: time.Minute, For: sec},
		"9s+2s/lag=200ms": {At: 9 * sec, For: 2 * sec, Memory: Replica, Lag: 200 * ms1},
	} {
		if got, err := ParseFault(text); got != want || err != nil {
			t.Errorf("ParseFault(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30s", "30s+", "30+10", "-1s+1s", "1s+0s", "1s+1s/0%", "1s+1s/101%", "1s+1s/NaN", "1s+1s/half"} {
		if got, err := ParseCut(text); err == nil {
			t.Errorf("ParseCut(%q) = %v", text, got)
		}
	}
	for _, text := range []string{"", "x", "1s+", "1s/", "1s/full", "1s/lag=", "1s/lag=-1s", "1s+1s/lag=1"} {
		if got, err := ParseFault(text); err == nil {
			t.Errorf("ParseFault(%q) = %v", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"30s+10s/25%", "1m+1s/lag=200ms", "9s/empty", "0.05", "5%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseCut(s); err == nil {
			again, err := ParseCut(c.String())
			if err != nil || again.At != c.At || again.For != c.For || math.Abs(again.Share-c.Share) > 1e-9 {
				t.Errorf("%q: %v, and of %q %v, %v", s, c, c.String(), again, err)
			}
		}
		if x, err := ParseFault(s); err == nil {
			if again, err := ParseFault(x.String()); err != nil || again != x {
				t.Errorf("%q: %v, and of %q %v, %v", s, x, x.String(), again, err)
			}
		}
		if x, ok := ParseShare(s); ok && !(x >= 0 && x <= 1) {
			t.Errorf("%q: %v", s, x)
		}
	})
}

func TestCheck(t *testing.T) {
	good := Options{Hosts: 8, Limit: perSecond(20, 1), Duration: time.Minute}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"hosts":        func(o *Options) { o.Hosts = 0 },
		"rate":         func(o *Options) { o.Limit = fleet.Limit{} },
		"burst":        func(o *Options) { o.Limit.Burst = 0 },
		"duration":     func(o *Options) { o.Duration = 0 },
		"load":         func(o *Options) { o.Load = -1 },
		"waves":        func(o *Options) { o.Waves = sec },
		"loss":         func(o *Options) { o.Lost = 1.5 },
		"latency":      func(o *Options) { o.Latency = time.Hour },
		"skew":         func(o *Options) { o.Skew = -1 },
		"arrive":       func(o *Options) { o.Arrive = time.Hour },
		"requests":     func(o *Options) { o.Limit.Interval, o.Duration = 1, time.Hour },
		"partition 2m": func(o *Options) { o.Cuts = []Cut{{2 * time.Minute, sec, 1}} },
		"restart 1s":   func(o *Options) { o.Faults = []Fault{{At: sec, Memory: Replica, Lag: 2 * sec}} },
		"restart 5s":   func(o *Options) { o.Faults = []Fault{{At: 4 * sec, For: 4 * sec}, {At: 5 * sec}} },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
