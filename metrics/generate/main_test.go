// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/metrics"
)

const root = "../.."

func TestCommittedFilesAreFresh(t *testing.T) {
	for _, f := range files() {
		want, err := f.make()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its sources make: run go generate ./metrics/...", f.path)
		}
	}
}

func TestRunWritesAllFiles(t *testing.T) {
	dir := t.TempDir()
	for _, f := range files() {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f.path)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	for _, f := range files() {
		if text, err := os.ReadFile(filepath.Join(dir, f.path)); err != nil || len(text) == 0 {
			t.Errorf("%s: got %d bytes and error %v", f.path, len(text), err)
		}
	}
	if err := run(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("into a folder that is not there: got no error")
	}
}

func TestReferenceHasEverything(t *testing.T) {
	text, err := reference()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range metrics.Families() {
		for _, want := range append([]string{"\n## " + f.Name + "\n", f.Help, f.Asks, f.Query, f.Unit}, f.Labels...) {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: %q is not in the reference", f.Name, want)
			}
		}
	}
	if strings.Contains(string(text), "\n\n\n") {
		t.Error("got two empty lines in a row")
	}
}
