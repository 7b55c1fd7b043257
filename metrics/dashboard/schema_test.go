// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// readStrictly reads a dashboard as strictly as the types can that are made from
// Grafana's own schemas.
func readStrictly(text []byte) error {
	plugins.RegisterDefaultPlugins() // else options of panels and queries are not looked at
	//lint:ignore SA1019 the model that is to follow is read by Grafana 12 and later alone
	err := new(dashboard.Dashboard).UnmarshalJSONStrict(text)
	// It returns its list of errors even where that is empty.
	if errs, ok := errors.AsType[cog.BuildErrors](err); ok && len(errs) == 0 {
		return nil
	}
	return err
}

// TestDashboardFitsTheSchema holds that what is committed has no field that
// Grafana's schemas do not have, none of a wrong type, and that nothing is lost
// when it is read and written again.
func TestDashboardFitsTheSchema(t *testing.T) {
	text, err := os.ReadFile("node-egress.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := readStrictly(text); err != nil {
		t.Fatal(err)
	}
	// The strict way leaves panels out of what it read.
	//lint:ignore SA1019 as above
	var d dashboard.Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	again, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var before, after any
	if err := json.Unmarshal(text, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &after); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, after) {
		t.Errorf("the dashboard, read and written again, is\n%s", again)
	}
	// That the reading is strict, within panels and queries, too.
	for _, part := range []string{`"title": "Cooldowns"`, `"rowHeight": 0.8`, `"refId": "A"`, `"name": "price"`} {
		if !strings.Contains(string(text), part) {
			t.Fatalf("%s is not in the dashboard", part)
		}
		if err := readStrictly([]byte(strings.Replace(string(text), part, part+`, "nonsense": 1`, 1))); err == nil {
			t.Errorf("an unknown field beside %s is not noticed", part)
		}
	}
}
