// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"image/png"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync/atomic"
	"testing"
	"time"
)

// TestOriginShuts holds that an origin which closes tells everybody the same end.
func TestOriginShuts(t *testing.T) {
	o := newOrigin(OriginConfig{Every: 100 * ms, Burst: 3, RetryAfter: 2 * time.Second, Shut: true}, time.Now())
	for _, tt := range []struct {
		at    time.Duration
		want  int
		delay time.Duration
	}{
		{0, 200, 0}, {0, 200, 0}, {0, 200, 0},
		{0, 429, 2 * time.Second},
		{1500 * ms, 429, 500 * ms},
		{1999 * ms, 429, ms},
		{2000 * ms, 200, 0},
	} {
		got := o.receive(tt.at)
		if got != tt.want || got == 429 && o.delay(tt.at) != tt.delay {
			t.Errorf("at %v: got %d and %v, want %d and %v", tt.at, got, o.delay(tt.at), tt.want, tt.delay)
		}
	}
}

// TestHeed holds that clients which heed Retry-After do not come back before.
func TestHeed(t *testing.T) {
	for _, heed := range []bool{false, true} {
		var n atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		Clients{URL: server.URL, Count: 2, Pause: ms, For: 300 * ms, Heed: heed}.Run(t.Context())
		server.Close()
		if got := n.Load(); heed && got != 2 || !heed && got <= 2 {
			t.Errorf("heed %v: got %d requests of two clients", heed, got)
		}
	}
}

func TestRun(t *testing.T) {
	got := record(0, 100, -200, 1500, -2999).run(3 * time.Second)
	want := Run{Requests: 5, Limited: 2, MaxInAnySecond: 3, Seconds: []Second{{2, 1}, {1, 0}, {0, 1}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestPictureFigure holds what is drawn with a Prometheus and without.
func TestPictureFigure(t *testing.T) {
	run := Run{Requests: 5, Limited: 2, MaxInAnySecond: 3, Seconds: []Second{{2, 1}, {1, 0}}}
	p := Picture{Workers: 50, Allowed: 10, RetryFor: 3, Measured: run, Held: run}
	for _, columns := range []int{1, 3} {
		if columns == 3 {
			for _, r := range []*Run{&p.Measured, &p.Held} {
				r.Rate = []Sample{{0.25, 1}, {0.5, 2}}
				r.Distribution = []Bucket{{"0", 1}, {"10", 4}, {"50", 2}, {"500", 0}, {"+Inf", 0}}
			}
		}
		f := p.Figure()
		f.Width = 900 // quicker
		for _, row := range f.Rows {
			if len(f.Columns) != columns || len(row.Panels) != columns {
				t.Fatalf("got %d columns and %d panels, want %d", len(f.Columns), len(row.Panels), columns)
			}
			if columns == 3 && len(row.Panels[2].Bars) != 3 {
				t.Errorf("got %d bars of the distribution, want those up to %d", len(row.Panels[2].Bars), mostOfInterest)
			}
		}
		var out bytes.Buffer
		if err := f.WritePNG(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(&out); err != nil {
			t.Error(err)
		}
	}
}
