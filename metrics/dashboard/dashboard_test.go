// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/metrics"
)

// drawn is what these tests read of a dashboard.
type drawn struct {
	Title  string
	Panels []drawnPanel
}

type drawnPanel struct {
	ID        int
	Type      string
	Title     string
	Repeat    string
	Collapsed bool
	GridPos   struct{ X, Y, W, H int }
	Targets   []struct{ RefID, Expr string }
	Panels    []drawnPanel
}

func mustDraw(t *testing.T) drawn {
	t.Helper()
	text, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	var d drawn
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestEverythingIsDrawn holds that the JSON has each row, panel and query of
// the table, in its order.
func TestEverythingIsDrawn(t *testing.T) {
	d := mustDraw(t)
	at := 0
	next := func() drawnPanel {
		if at == len(d.Panels) {
			t.Fatal("the dashboard has fewer panels than the table")
		}
		at++
		return d.Panels[at-1]
	}
	for _, r := range Rows() {
		row := next()
		if row.Type != "row" || row.Title != r.Title || row.Repeat != r.Each || row.Collapsed != (r.Each != "") {
			t.Errorf("got row %+v, want %q, for each %q", row, r.Title, r.Each)
		}
		for i, p := range r.Panels {
			var got drawnPanel
			if r.Each != "" {
				got = row.Panels[i]
			} else {
				got = next()
			}
			if got.Title != p.Title || len(got.Targets) != len(p.Queries) {
				t.Errorf("got panel %q of %d queries, want %q of %d", got.Title, len(got.Targets), p.Title, len(p.Queries))
				continue
			}
			for j, q := range p.Queries {
				if got.Targets[j].Expr != q.Expr {
					t.Errorf("%s: got query %s, want %s", p.Title, got.Targets[j].Expr, q.Expr)
				}
			}
		}
	}
	if at != len(d.Panels) {
		t.Errorf("the dashboard has %d panels, the table %d", len(d.Panels), at)
	}
}

// TestPanelsHaveTheirPlace holds that no two panels lie on each other or share
// their number, and that lines are full.
func TestPanelsHaveTheirPlace(t *testing.T) {
	seen := map[int]bool{}
	used := map[int]map[int]string{} // by y and x
	var place func(p drawnPanel)
	place = func(p drawnPanel) {
		if seen[p.ID] || p.ID == 0 {
			t.Errorf("%s: got number %d, which is 0 or another's", p.Title, p.ID)
		}
		seen[p.ID] = true
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if used[y] == nil {
					used[y] = map[int]string{}
				}
				if other := used[y][x]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				used[y][x] = p.Title
			}
		}
		for _, inside := range p.Panels {
			place(inside)
		}
	}
	for _, p := range mustDraw(t).Panels {
		place(p)
	}
	for y, line := range used {
		if len(line) != 24 {
			t.Errorf("line %d is filled by %d of 24", y, len(line))
		}
	}
}

func TestPanelsAreExplained(t *testing.T) {
	titles := map[string]bool{}
	for _, r := range Rows() {
		for _, p := range r.Panels {
			if titles[p.Title] || !strings.HasSuffix(p.About, ".") || p.Unit == "" {
				t.Errorf("%q: got about %q and unit %q, want a title of its own and both", p.Title, p.About, p.Unit)
			}
			titles[p.Title] = true
			for _, q := range p.Queries {
				if q.Legend == "" {
					t.Errorf("%s: %s has no legend", p.Title, q.Expr)
				}
			}
		}
	}
}

var (
	familyUse   = regexp.MustCompile(`\begressd_\w+`)
	variableUse = regexp.MustCompile(`\$(\w+)`)
)

// TestMetricsAreKnownAndShown holds that panels ask for no metric that nobody
// writes, and that what is written is shown.
func TestMetricsAreKnownAndShown(t *testing.T) {
	shown := map[string]bool{}
	note := func(expr string) {
		for _, name := range familyUse.FindAllString(expr, -1) {
			shown[strings.TrimSuffix(name, "_bucket")] = true
		}
	}
	note(Reloads)
	for _, v := range Variables() {
		note(v.Family)
	}
	known := []string{varInstance, varExit, varDestination, varPrice, "__rate_interval", "__range"}
	for _, r := range Rows() {
		for _, p := range r.Panels {
			for _, q := range p.Queries {
				note(q.Expr)
				for _, v := range variableUse.FindAllStringSubmatch(q.Expr, -1) {
					if !slices.Contains(known, v[1]) {
						t.Errorf("%s: no variable %s", p.Title, v[0])
					}
				}
			}
		}
	}
	for _, f := range metrics.Families() {
		if !shown[f.Name] {
			t.Errorf("no panel shows %s", f.Name)
		}
		delete(shown, f.Name)
	}
	for name := range shown {
		t.Errorf("%s is asked for, and no collector writes it", name)
	}
}

// TestTheDaemonDoesNotCarryIt holds that the library by which dashboards are
// drawn is no part of the binary.
func TestTheDaemonDoesNotCarryIt(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../../cmd/egressd").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/egressd/egressd/metrics") {
		t.Fatal("the daemon has no metrics: this test looks at something else")
	}
	for _, path := range deps {
		if strings.Contains(path, "grafana") {
			t.Errorf("the daemon depends on %s", path)
		}
	}
}
