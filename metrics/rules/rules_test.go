// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/metrics"
)

// promtool runs Prometheus's own tool.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v: scripts/install-deps.sh test installs it", err)
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

const (
	rulesFile = "egressd.rules.yml"
	testsFile = "egressd.rules.test.yml"
)

func TestRulesAreValid(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
}

func TestRulesTellTheirStories(t *testing.T) {
	promtool(t, "test", "rules", testsFile)
}

func mustRead(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	alertName = regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	recorded  = regexp.MustCompile(`(?m)^ *- record: (\S+)$`)
	familyUse = regexp.MustCompile(`\begressd_\w+`)
)

// TestEachAlertHasItsStory holds that each alert is seen to fire, and not to
// fire.
func TestEachAlertHasItsStory(t *testing.T) {
	stories := mustRead(t, testsFile)
	alerts := alertName.FindAllStringSubmatch(mustRead(t, rulesFile), -1)
	if len(alerts) == 0 {
		t.Fatal("found no alert")
	}
	for _, a := range alerts {
		fires := regexp.MustCompile(`alertname: ` + a[1] + `\n +exp_alerts:\n`)
		silent := regexp.MustCompile(`alertname: ` + a[1] + `, exp_alerts: \[\]`)
		if !fires.MatchString(stories) || !silent.MatchString(stories) {
			t.Errorf("%s: %s has it fire: %v, has it be silent: %v, want both", a[1], testsFile, fires.MatchString(stories), silent.MatchString(stories))
		}
	}
}

// TestRulesAreOfKnownMetrics holds that no rule waits for a metric that nobody
// writes: Prometheus would never complain.
func TestRulesAreOfKnownMetrics(t *testing.T) {
	text := mustRead(t, rulesFile)
	var known []string
	for _, f := range metrics.Families() {
		known = append(known, f.Name)
	}
	for _, r := range recorded.FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, r[1], "") // its middle part is no metric
	}
	used := familyUse.FindAllString(text, -1)
	if len(used) == 0 {
		t.Fatal("found no metric")
	}
	for _, name := range used {
		if !slices.Contains(known, name) {
			t.Errorf("%s is used, and no collector writes it", name)
		}
	}
}
