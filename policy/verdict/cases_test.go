// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"
)

const casesFile = "testdata/verdict.json"

type answer struct {
	Name    string
	Status  int
	Connect bool
	Headers [][2]string
	At      time.Time
	Expect  map[string]any
}

func mustCases(t testing.TB) []answer {
	t.Helper()
	text, err := os.ReadFile(casesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []answer }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatalf("read %s: %v", casesFile, err)
	}
	if len(file.Cases) == 0 {
		t.Fatalf("%s holds no cases", casesFile)
	}
	return file.Cases
}

func (a answer) judge() Verdict {
	h := Head{Status: a.Status, Connect: a.Connect, At: a.At}
	for _, f := range a.Headers {
		h.Field([]byte(f[0]), []byte(f[1]))
	}
	return h.Verdict(nil)
}

// differences lists what of expect the verdict does not say.
func differences(v Verdict, expect map[string]any) []string {
	got := facts(v)
	var out []string
	for key, want := range expect {
		if g, known := got[key]; !known || g != want {
			out = append(out, fmt.Sprintf("%s = %v, want %v", key, g, want))
		}
	}
	return out
}

// facts is a verdict in the terms of the cases file. What it does not say is
// nil, as null in the file.
func facts(v Verdict) map[string]any {
	got := map[string]any{
		"kind": v.Kind.String(), "delay_ms": nil,
		"limit": nil, "remaining": nil, "reset_ms": nil, "window_ms": nil, "rate_per_s": nil,
	}
	milli := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	if v.HasDelay {
		got["delay_ms"] = milli(v.Delay)
	}
	if v.Quota.HasLimit {
		got["limit"] = float64(v.Quota.Limit)
	}
	if v.Quota.HasRemaining {
		got["remaining"] = float64(v.Quota.Remaining)
	}
	if v.Quota.HasReset {
		got["reset_ms"] = milli(v.Quota.Reset)
	}
	if v.Quota.Window > 0 {
		got["window_ms"] = milli(v.Quota.Window)
	}
	if v.Quota.PerSecond > 0 {
		got["rate_per_s"] = v.Quota.PerSecond
	}
	return got
}

func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range mustCases(t) {
		if seen[c.Name] {
			t.Errorf("two cases are named %q", c.Name)
		}
		seen[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			for _, d := range differences(c.judge(), c.Expect) {
				t.Errorf("got %s", d)
			}
		})
	}
}

// The cases are shared with other programs; where their file is at hand, the
// copy must be the same.
func TestCasesAreTheSharedOnes(t *testing.T) {
	const shared = "../../../shared/cases/verdict.json"
	want, err := os.ReadFile(shared)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not here: nothing to compare with", shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(casesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s (%d bytes) differs from %s (%d bytes)", casesFile, len(got), shared, len(want))
	}
}
