// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestFamiliesAreAsShown holds that the table tells of each family what a
// scrape tells.
func TestFamiliesAreAsShown(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Config{Source: full()}))
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, f := range gathered {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	for _, f := range families {
		if got := types[f.Name]; got != string(f.Type) {
			t.Errorf("%s: a scrape shows a %s, the table says %s", f.Name, got, f.Type)
		}
		delete(types, f.Name)
	}
	for name := range types {
		t.Errorf("%s: is shown, and is not in the table", name)
	}
}

func TestFamiliesAreExplained(t *testing.T) {
	for _, f := range Families() {
		if f.Unit == "" || !strings.HasSuffix(f.Help, ".") || !strings.HasSuffix(f.Asks, "?") || !strings.Contains(f.Query, f.Name) {
			t.Errorf("%s: got unit %q, help %q, question %q and query %q, want all of them, the query about the family", f.Name, f.Unit, f.Help, f.Asks, f.Query)
		}
		if (f.Type == Counter) != strings.HasSuffix(f.Name, "_total") {
			t.Errorf("%s: is a %s", f.Name, f.Type)
		}
	}
}

func TestFamiliesAreTheCallersOwn(t *testing.T) {
	Families()[0].Name = "changed"
	if got := families[0].Name; got != NameRequests {
		t.Errorf("the table now begins with %s, want %s", got, NameRequests)
	}
}
