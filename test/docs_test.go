// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are the texts for people, by path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for name, content := range sources(t) {
		if strings.HasSuffix(name, ".md") {
			docs[name] = string(content)
		}
	}
	if len(docs) == 0 {
		t.Fatal("no document found")
	}
	return docs
}

var (
	metricName  = regexp.MustCompile(`\begressd_[a-z0-9_]+\b`)
	quotedName  = regexp.MustCompile(`"(?:egressd_)?([a-z0-9_]+)"`)
	makeCommand = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)")
	makeTarget  = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)
	linkTarget  = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
)

// knownMetrics are the names that the collectors write, with egressd_.
func knownMetrics(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for name, content := range sources(t) {
		if !strings.HasPrefix(name, "metrics/") || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range quotedName.FindAllStringSubmatch(string(content), -1) {
			known["egressd_"+m[1]] = true
		}
	}
	if len(known) == 0 {
		t.Fatal("no metric found in metrics/")
	}
	return known
}

// exists reports whether name is a known metric or a series of a histogram.
func exists(known map[string]bool, name string) bool {
	if known[name] {
		return true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && known[base] {
			return true
		}
	}
	return false
}

func TestMetricsInDocumentsExist(t *testing.T) {
	known := knownMetrics(t)
	for doc, text := range documents(t) {
		for _, name := range metricName.FindAllString(text, -1) {
			if !exists(known, name) {
				t.Errorf("%s names %s, which no collector writes", doc, name)
			}
		}
	}
	if exists(known, "egressd_no_such_total") {
		t.Error("egressd_no_such_total: got known, want unknown")
	}
}

func TestMakeTargetsInDocumentsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	for doc, text := range documents(t) {
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s: make %s: no such target; there are %v", doc, m[1], targets)
			}
		}
	}
}

func TestLinksInDocumentsExist(t *testing.T) {
	for doc, text := range documents(t) {
		for _, m := range linkTarget.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue // another host's
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", doc, m[1], err)
			}
		}
	}
}
