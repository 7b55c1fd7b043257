// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("here", 2*60*60)
	now := time.Date(2026, 11, 29, 10, 30, 0, 0, zone)
	for _, tt := range []struct {
		text string
		want time.Time
	}{
		{"", time.Time{}},
		{"15m", now.Add(-15 * time.Minute)},
		{"0s", now},
		{"36h", now.Add(-36 * time.Hour)},
		{"2026-11-29T08:20:00Z", time.Date(2026, 11, 29, 10, 20, 0, 0, zone)},
		{"2026-11-29T08:20:00.5+00:00", time.Date(2026, 11, 29, 10, 20, 0, 5e8, zone)},
		{"2026-11-29T10:20:00", time.Date(2026, 11, 29, 10, 20, 0, 0, zone)},
		{"2026-11-29 10:20:01", time.Date(2026, 11, 29, 10, 20, 1, 0, zone)},
		{"2026-11-29 10:20", time.Date(2026, 11, 29, 10, 20, 0, 0, zone)},
		{"2026-11-28", time.Date(2026, 11, 28, 0, 0, 0, 0, zone)},
		{"10:20", time.Date(2026, 11, 29, 10, 20, 0, 0, zone)},
		{"10:20:30", time.Date(2026, 11, 29, 10, 20, 30, 0, zone)},
		{"10:40", time.Date(2026, 11, 28, 10, 40, 0, 0, zone)}, // yesterday
	} {
		got, err := parseSince(tt.text, now)
		if err != nil || !got.Equal(tt.want) {
			t.Errorf("%q: got %v and error %v, want %v", tt.text, got, err, tt.want)
		}
	}
	for text, want := range map[string]string{
		"-5m":                  `--since "-5m" lies in the future`,
		"2026-11-30":           `--since "2026-11-30" lies in the future`,
		"2026-11-29T10:30:01Z": `--since "2026-11-29T10:30:01Z" lies in the future`,
		"yesterday":            `--since "yesterday" is neither a duration nor a time: write it as 15m, 10:20 or 2026-11-29T10:20:00Z`,
		"15":                   `--since "15" is neither a duration nor a time: write it as 15m, 10:20 or 2026-11-29T10:20:00Z`,
	} {
		if got, err := parseSince(text, now); err == nil || err.Error() != want {
			t.Errorf("%q: got %v and error %v, want %s", text, got, err, want)
		}
	}
}

// TestEventsAreExplained holds that docs/EVENTS.md has every kind and every
// field of events, and that its sample is of events.
func TestEventsAreExplained(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text := read("docs/EVENTS.md")
	kinds := regexp.MustCompile(`EventKind = "(\w+)"`).FindAllStringSubmatch(read("policy/event.go"), -1)
	if len(kinds) < 10 {
		t.Fatalf("got kinds %v: this test looks in the wrong place", kinds)
	}
	known := map[string]bool{}
	for _, k := range kinds {
		known[k[1]] = true
		if !strings.Contains(text, "\n| `"+k[1]+"` |") {
			t.Errorf("the kind %s is not explained", k[1])
		}
	}
	shape := reflect.TypeFor[admin.Event]()
	for i := range shape.NumField() {
		name, _, _ := strings.Cut(shape.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the field %s is not explained", name)
		}
	}
	_, sample, _ := strings.Cut(text, "```json\n")
	sample, _, _ = strings.Cut(sample, "```")
	n := 0
	for line := range strings.Lines(sample) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		var ev admin.Event
		if err := dec.Decode(&ev); err != nil || !known[ev.Kind] {
			t.Errorf("%v in %s", err, line)
		}
		n++
	}
	if n < 5 {
		t.Errorf("the sample has %d events", n)
	}
}
