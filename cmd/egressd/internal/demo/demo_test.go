// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// record makes a Record of times in milliseconds; a negative one was limited.
func record(times ...int) Record {
	var r Record
	for _, at := range times {
		if at < 0 {
			r = append(r, Receipt{time.Duration(-at) * ms, 429})
		} else {
			r = append(r, Receipt{time.Duration(at) * ms, 200})
		}
	}
	return r
}

func TestMaxInAnySecond(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    Record
		want int
	}{
		{"none", nil, 0},
		{"one", record(5), 1},
		{"a second apart", record(0, 1000, 2000), 1},
		{"a second apart, with jitter", record(0, 951, 2000), 1},
		{"too close", record(0, 949, 2000), 2},
		{"across the border of two seconds", record(0, 900, 1000, 1100, 1900), 3},
	} {
		if got := tt.r.MaxInAnySecond(); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestStampede(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    Record
		want Stampede
		ok   bool
	}{
		{"held", record(0, 100, -200, 3400, 3500, 5000), Stampede{50, 3, 0, 3200, 2}, true},
		{"not held", record(0, -200, 210, 3199, 3201), Stampede{50, 3, 2, 3001, 1}, true},
		{"nothing after", record(0, -200), Stampede{}, false},
		{"no 429", record(0, 4000), Stampede{}, false},
	} {
		got, after, ok := tt.r.stampede(50, 3*time.Second)
		if ok && after[0].At-tt.r[0].At < 3*time.Second {
			t.Errorf("%s: got a first request after the cooldown at %v", tt.name, after[0].At)
		}
		if got != tt.want || ok != tt.ok {
			t.Errorf("%s: got %+v, %v, want %+v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestSince(t *testing.T) {
	got := record(500, 700, -1499, 1500).Since(time.Second)
	if want := record(0, 200, -999); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestOriginBucket(t *testing.T) {
	o := newOrigin(OriginConfig{Every: time.Second}, time.Now())
	for _, step := range []struct {
		at   time.Duration
		want int
	}{
		{0, 200},
		{0, 429},
		{949 * ms, 429},
		{950 * ms, 200}, // one interval less the tolerance
		{1000 * ms, 429},
		{2000 * ms, 200}, // but the pace on the whole stays
		{10 * time.Second, 200},
		{10*time.Second + ms, 429}, // idle time saves no second request
		{9 * time.Second, 429},     // a clock read late
	} {
		if got := o.receive(step.at); got != step.want {
			t.Errorf("at %v: got %d, want %d", step.at, got, step.want)
		}
	}
}

func TestOriginLimitsOnce(t *testing.T) {
	o := newOrigin(OriginConfig{LimitOnceAfter: time.Second, RetryAfter: time.Second}, time.Now())
	for _, step := range []struct {
		at   time.Duration
		want int
	}{
		{5000 * ms, 200}, {5999 * ms, 200}, {6000 * ms, 429}, {6001 * ms, 200}, {9000 * ms, 200},
	} {
		if got := o.receive(step.at); got != step.want {
			t.Errorf("at %v: got %d, want %d", step.at, got, step.want)
		}
	}
}

// TestServe speaks to an origin as the demo does, over both loopbacks.
func TestServe(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(OriginConfig{LimitOnceAfter: 1, RetryAfter: 3 * time.Second}, inR, outW)
		outW.Close()
	}()
	dec := json.NewDecoder(outR)
	var h hello
	if err := dec.Decode(&h); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 429} {
		res, err := http.Get(fmt.Sprintf("http://localhost:%d/", h.Port))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("request %d: got status %d, want %d", i, res.StatusCode, want)
		}
		if got, want := res.Header.Get("Retry-After"), map[int]string{429: "3"}[want]; got != want {
			t.Errorf("request %d: got Retry-After %q, want %q", i, got, want)
		}
	}
	inW.Close()
	var r Record
	if err := dec.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if len(r) != 2 || r.Limited() != 1 || r[0].At <= 0 || r[1].At < r[0].At {
		t.Errorf("got record %v, want two requests in order, one limited", r)
	}
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestPrint(t *testing.T) {
	r := &Result{
		without: record(0, -1, -2, 1000, -1001), with: record(0, 960),
		Stampede: Stampede{50, 3, 0, 3210, 5}, after: record(5000, 5100, 6500, 6600, 6700, 8000),
	}
	r.Without, r.With = r.without.phase(), r.with.phase()
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `                                   WITHOUT  WITH EGRESSD
requests that the origin received        5             2
  of them answered with 429              3             0
  most in any second                     3             1

Each second at the origin (# served, ! answered with 429):

   s  without  with
   1  #!!      #
   2  #!       #
   3
`
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
	if got, want := out.String(), "first request after        3.21 s\n"; !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %q in it", got, want)
	}
}

func TestResultJSON(t *testing.T) {
	got, err := json.Marshal(Result{Without: Phase{40, 30, 4}, With: Phase{10, 0, 1}, Stampede: Stampede{50, 3, 0, 3200, 9}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"without":{"requests":40,"limited":30,"max_in_any_second":4},` +
		`"with":{"requests":10,"limited":0,"max_in_any_second":1},` +
		`"stampede":{"workers":50,"retry_after_s":3,"sent_during_cooldown":0,"first_after_ms":3200,"max_in_any_second_after":9}}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
