// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository as seen from here, where the go command runs tests.
const root = ".."

// sources reads every file of the repository that was written here: without
// git's folder, what is built, what is generated, and what others wrote.
// Keys are slash-separated paths from the root.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			switch name {
			case ".git", "bin", "bpf/headers":
				return fs.SkipDir
			}
			if d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if name == "LICENSE" || strings.Contains(d.Name(), "_bpfel") {
			return nil
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatalf("reading the repository: %v", err)
	}
	return files
}

const (
	apache = "SPDX-License-Identifier: Apache-2.0"
	dual   = "SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)"
)

// licence is the SPDX line that a file needs among its first lines; "" if it
// needs none.
func licence(name string) string {
	switch {
	case strings.HasSuffix(name, ".c"), strings.HasSuffix(name, ".h"):
		return dual
	case strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".sh"), name == ".ci/run", name == "Makefile":
		return apache
	}
	return ""
}

// hasLicence reports whether one of the first three lines (a script begins
// with its interpreter) is the comment that licence asks for.
func hasLicence(name string, content []byte) bool {
	want := licence(name)
	if want == "" {
		return true
	}
	for i, line := range bytes.SplitN(content, []byte("\n"), 4) {
		text := strings.TrimSpace(strings.TrimSuffix(string(line), "*/"))
		for _, comment := range []string{"// ", "# ", "/* "} {
			if i < 3 && text == comment+want {
				return true
			}
		}
	}
	return false
}

func TestLicences(t *testing.T) {
	files := sources(t)
	held := 0
	for name, content := range files {
		if licence(name) != "" {
			held++
		}
		if !hasLicence(name, content) {
			t.Errorf("%s: no line %q at its head", name, licence(name))
		}
	}
	if held == 0 {
		t.Error("no file needs a licence: the rule holds nothing")
	}
}

func TestMissingLicenceIsFound(t *testing.T) {
	for _, tc := range []struct {
		name, content string
		want          bool
	}{
		{"loader/a.go", "// " + apache + "\n\npackage loader\n", true},
		{"loader/a.go", "package loader\n", false},
		{"loader/a.go", "// " + dual + "\n", false},
		{"loader/a.go", "package loader\n\nimport ()\n// " + apache + "\n", false},
		{"bpf/a.h", "/* " + dual + " */\n", true},
		{"bpf/a.h", "// " + apache + "\n", false},
		{"scripts/a.sh", "#!/bin/sh\n# " + apache + "\n", true},
		{"scripts/a.sh", "#!/bin/sh\n", false},
		{"README.md", "egressd\n", true},
	} {
		if got := hasLicence(tc.name, []byte(tc.content)); got != tc.want {
			t.Errorf("%s with %q: got licensed %v, want %v", tc.name, tc.content, got, tc.want)
		}
	}
}

// topLevel are the folders that the repository may have.
var topLevel = []string{".ci", ".git", "bin", "bpf", "cmd", "docs", "loader", "metrics", "policy", "scripts", "test", "userspace"}

func TestTopLevelFolders(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("folder %s: only %v belong at the top", e.Name(), topLevel)
		}
	}
}

// unfinished finds marks of work left undone.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

func TestNothingLeftUndone(t *testing.T) {
	for name, content := range sources(t) {
		for i, line := range strings.Split(string(content), "\n") {
			if mark := unfinished.FindString(line); mark != "" {
				t.Errorf("%s:%d: %s", name, i+1, mark)
			}
		}
	}
	if got := unfinished.FindString("// TO" + "DO: later"); got == "" {
		t.Error("the pattern finds nothing")
	}
}

// packageDocs counts the package comments of each folder with Go files,
// tests left out. Folders without any comment count 0.
func packageDocs(files map[string][]byte) (map[string]int, error) {
	docs := map[string]int{}
	for name, content := range files {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, content, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return nil, err
		}
		folder := name[:max(0, strings.LastIndex(name, "/"))]
		docs[folder] += 0
		if isPackageDoc(f.Doc, f.Name.Name) {
			docs[folder]++
		}
	}
	return docs, nil
}

func isPackageDoc(doc *ast.CommentGroup, name string) bool {
	if doc == nil {
		return false
	}
	text := doc.Text()
	if name == "main" {
		return strings.HasPrefix(text, "Command ")
	}
	return strings.HasPrefix(text, "Package "+name+" ")
}

func TestPackageDocs(t *testing.T) {
	docs, err := packageDocs(sources(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range slices.Sorted(maps.Keys(docs)) {
		if docs[folder] != 1 {
			t.Errorf("%s: got %d package comments, want 1", folder, docs[folder])
		}
	}
}

func TestPackageDocsAreCounted(t *testing.T) {
	got, err := packageDocs(map[string][]byte{
		"a/a.go":      []byte("// Package a does.\npackage a\n"),
		"a/b.go":      []byte("package a\n"),
		"two/a.go":    []byte("// Package two does.\npackage two\n"),
		"two/b.go":    []byte("// Package two does too.\npackage two\n"),
		"none/a.go":   []byte("// SPDX\n\npackage none\n"),
		"cmd/c/m.go":  []byte("// Command c runs.\npackage main\n"),
		"t/a_test.go": []byte("// Package t does.\npackage t\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"a": 1, "two": 2, "none": 0, "cmd/c": 1}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", fmt.Sprint(got), fmt.Sprint(want))
	}
}
