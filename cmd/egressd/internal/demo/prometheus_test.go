// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"testing"
)

func TestInstant(t *testing.T) {
	var got []instant
	if err := json.Unmarshal([]byte(`[[1700000000.25,"3.5"],[1,"+Inf"]]`), &got); err != nil || got[0] != (instant{1700000000.25, 3.5}) || got[1].at != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{`[1,2]`, `["1","2"]`, `[1]`, `{}`, `[1,"x"]`} {
		if err := json.Unmarshal([]byte(bad), new(instant)); err == nil {
			t.Errorf("%s: got no error", bad)
		}
	}
}

func FuzzInstant(f *testing.F) {
	f.Add([]byte(`[1700000000.25,"3.5"]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var i instant
		if err := i.UnmarshalJSON(text); err == nil && !json.Valid(text) {
			t.Errorf("%q was read", text)
		}
	})
}
