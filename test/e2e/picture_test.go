// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pictured is what `egressd demo --png --json` says of one run.
type pictured struct {
	Requests, Limited int
	MaxInAnySecond    int `json:"max_in_any_second"`
	Seconds           []struct{ Served, Limited int }
	Rate              []struct{ Value float64 } `json:"prometheus_rate"`
	Distribution      []struct {
		Most    string
		Seconds float64
	} `json:"prometheus_distribution"`
}

// most is the highest rate that Prometheus saw.
func (p *pictured) most() (rate float64) {
	for _, s := range p.Rate {
		rate = max(rate, s.Value)
	}
	return rate
}

// within is the number of seconds that had as many requests as a bucket says, by
// Prometheus.
func (p *pictured) within(buckets ...string) (seconds float64) {
	for _, b := range p.Distribution {
		for _, want := range buckets {
			if b.Most == want {
				seconds += b.Seconds
			}
		}
	}
	return seconds
}

// TestPicture has the stampede drawn, and holds that what is drawn is a sawtooth
// where nothing is held and a ceiling where egressd holds: at the origin, and by the
// queries of the dashboard.
func TestPicture(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	name := filepath.Join(shortDir(t), "stampede.png")
	p := start(t, how{in: g}, here.bin, "demo", "--png", name, "--json", "--for", "7s")
	p.mustSucceed(t, 2*time.Minute)
	var got struct {
		Workers        int
		Allowed        float64 `json:"allowed_per_second"`
		Measured, Held pictured
	}
	if err := json.Unmarshal([]byte(p.stdout.String()), &got); err != nil {
		t.Fatalf("%v in\n%s", err, p.stdout.String())
	}
	m, h := &got.Measured, &got.Held
	t.Logf("measured: %d requests, %d limited, at most %d in a second; Prometheus saw up to %.1f/s", m.Requests, m.Limited, m.MaxInAnySecond, m.most())
	t.Logf("held: %d requests, %d limited, at most %d in a second; Prometheus saw up to %.1f/s", h.Requests, h.Limited, h.MaxInAnySecond, h.most())
	if m.MaxInAnySecond < 25 || 2*m.Limited < m.Requests {
		t.Errorf("measured: got %d in a second and %d of %d limited, want a stampede", m.MaxInAnySecond, m.Limited, m.Requests)
	}
	if m.within("20", "50") < 2 || m.most() < 1.5*got.Allowed {
		t.Errorf("measured: Prometheus has %v and %v/s, want full seconds", m.Distribution, m.most())
	}
	// A busy machine delivers late what was sent in time.
	if h.Limited > 0 || h.MaxInAnySecond > 12 || h.Requests < 10 {
		t.Errorf("held: got %d requests, %d limited, %d in a second, want a ceiling of %v", h.Requests, h.Limited, h.MaxInAnySecond, got.Allowed)
	}
	if n := h.within("50", "100"); n > 0 || h.most() > 2.5*got.Allowed {
		t.Errorf("held: Prometheus has %v and %v/s, want a ceiling of %v", h.Distribution, h.most(), got.Allowed)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if img, err := png.Decode(file); err != nil || img.Bounds().Dx() != 1800 {
		t.Errorf("got a picture of %v, %v", img, err)
	}
	if left := g.children(t); len(left) > 0 {
		t.Errorf("egressd demo left cgroups %v", left)
	}
	mustBeClean(t, g)
}
