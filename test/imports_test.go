// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/egressd/egressd"

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// folder is the path of the package below the module's root.
func (p pkg) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// arrows are the only folders of the module that a package may import. The
// longest matching key counts; what has none may import nothing of the module.
var arrows = map[string][]string{
	"policy":    {"policy"},
	"loader":    {"loader", "policy"},
	"userspace": {"userspace", "policy"},
	"metrics":   {"metrics", "policy"},
	"cmd":       {"cmd", "policy", "loader", "userspace", "metrics"},
	"test":      {"test", "policy", "loader", "userspace", "metrics"},
}

// reserved says which folders alone may import a foreign module, or a part of
// one. Where several keys match, all of them hold.
var reserved = map[string][]string{
	"github.com/cilium/ebpf":                 {"loader", "test/bench"},
	"github.com/spf13/cobra":                 {"cmd"},
	"github.com/prometheus":                  {"metrics"},
	"github.com/prometheus/exporter-toolkit": {"metrics/web"},
	"github.com/klauspost":                   {"metrics"},
	"go.yaml.in/yaml/v3":                     {"policy/config", "metrics/web"},
	"github.com/redis":                       {"userspace/fleet"},
	"github.com/rogpeppe":                    {"cmd"},
	"github.com/vishvananda":                 {"loader", "userspace", "cmd", "test/vm"},
	"github.com/grafana":                     {"metrics/dashboard"},
	"github.com/bogdanfinn":                  {"userspace/terminate"},
	"golang.org/x/arch":                      {"loader/sight/discover"},
	"golang.org/x/image":                     {"cmd/egressd/internal/plot"},
	rival:                                    {"test"},
}

// rival is the limiter that egressd replaces: benchmarks compare with it, so
// the tests of every package may import it, and no other code.
const rival = "golang.org/x/time"

// pureException is the one foreign module that policy may import, and the
// folder within which it may.
const (
	pureException   = "go.yaml.in/yaml/v3"
	pureExceptionIn = "policy/config"
)

// violations lists the imports of p that break the rules, tests of the
// package included, each as "package imports other: reason".
func violations(p pkg) []string {
	var bad []string
	from := p.folder()
	check := func(imports []string, test bool) {
		for _, path := range imports {
			if test && within(path, rival) {
				continue
			}
			if reason := forbidden(from, path); reason != "" {
				bad = append(bad, fmt.Sprintf("%s imports %s: %s", from, path, reason))
			}
		}
	}
	check(p.Imports, false)
	check(p.TestImports, true)
	check(p.XTestImports, true)
	return bad
}

// forbidden says why the package in folder from may not import path, or "".
func forbidden(from, path string) string {
	if within(path, module) {
		to := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
		top, _, _ := strings.Cut(from, "/")
		for _, dir := range arrows[top] {
			if within(to, dir) {
				return ""
			}
		}
		return fmt.Sprintf("%s may import only %v", top, arrows[top])
	}
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") {
		return "" // the standard library
	}
	if within(from, "policy") && (path != pureException || !within(from, pureExceptionIn)) {
		return "policy imports the standard library only"
	}
	for prefix, dirs := range reserved {
		if within(path, prefix) && !slices.ContainsFunc(dirs, func(dir string) bool { return within(from, dir) }) {
			return fmt.Sprintf("only %v may", dirs)
		}
	}
	return ""
}

// mustList asks the go command for all packages of the module.
func mustList(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImportArrows(t *testing.T) {
	pkgs := mustList(t)
	seen := map[string]bool{}
	for _, p := range pkgs {
		top, _, _ := strings.Cut(p.folder(), "/")
		seen[top] = true
		for _, v := range violations(p) {
			t.Error(v)
		}
	}
	for top := range arrows {
		if !seen[top] {
			t.Errorf("go list found no package in %s: the rule for it holds nothing", top)
		}
	}
}

func TestViolationsAreFound(t *testing.T) {
	for _, tc := range []struct {
		from, path string
		bad        bool
	}{
		{"policy/ledger", "sync/atomic", false},
		{"policy/config", "go.yaml.in/yaml/v3", false},
		{"policy/config/strict", "go.yaml.in/yaml/v3", false},
		{"policy/verdict", "go.yaml.in/yaml/v3", true},
		{"userspace/sim", "go.yaml.in/yaml/v3", true},
		{"policy/config", "golang.org/x/sys/unix", true},
		{"policy", module + "/policy/ledger", false},
		{"policy", module + "/policyx", true},
		{"policy/ledger", module + "/loader", true},
		{"loader", "github.com/cilium/ebpf/link", false},
		{"loader", module + "/policy", false},
		{"loader", module + "/userspace/dial", true},
		{"loader", module + "/metrics", true},
		{"userspace/proxy", "github.com/cilium/ebpf", true},
		{"userspace/proxy", module + "/userspace/gate", false},
		{"userspace/proxy", module + "/loader", true},
		{"userspace/proxy", module + "/metrics", true},
		{"metrics", module + "/userspace/proxy", true},
		{"metrics", module + "/loader", true},
		{"metrics", "github.com/spf13/cobra", true},
		{"metrics", "github.com/prometheus/client_golang/prometheus", false},
		{"metrics", "github.com/prometheus/exporter-toolkit/web", true},
		{"metrics/web", "github.com/prometheus/exporter-toolkit/web", false},
		{"cmd/egressd", "github.com/prometheus/exporter-toolkit/web", true},
		{"metrics/page", "github.com/grafana/grafana-foundation-sdk/go/dashboard", true},
		{"cmd/egressd/internal/plot", "golang.org/x/image/font", false},
		{"cmd/egressd", "golang.org/x/image/font", true},
		{"userspace/gate", "github.com/redis/go-redis/v9", true},
		{"cmd/egressd", "github.com/redis/go-redis/v9", true},
		{"cmd/egressd", "github.com/spf13/cobra", false},
		{"cmd/egressd", module + "/loader", false},
		{"cmd/egressd", "github.com/cilium/ebpf", true},
		{"userspace", module + "/cmd/egressd", true},
		{"test/bench", module + "/cmd/egressd", true},
		{"newfolder", module + "/policy", true},
	} {
		for _, p := range []pkg{
			{ImportPath: module + "/" + tc.from, Imports: []string{tc.path}},
			{ImportPath: module + "/" + tc.from, TestImports: []string{tc.path}},
			{ImportPath: module + "/" + tc.from, XTestImports: []string{tc.path}},
		} {
			if got := len(violations(p)) > 0; got != tc.bad {
				t.Errorf("%s imports %s: got violation %v, want %v", tc.from, tc.path, got, tc.bad)
			}
		}
	}

	// The rival is welcome in tests alone.
	for from, bad := range map[string]bool{"policy/ledger": true, "userspace/gate": true, "test/bench": false} {
		if got := len(violations(pkg{ImportPath: module + "/" + from, Imports: []string{rival + "/rate"}})) > 0; got != bad {
			t.Errorf("%s imports %s/rate: got violation %v, want %v", from, rival, got, bad)
		}
		if got := violations(pkg{ImportPath: module + "/" + from, TestImports: []string{rival + "/rate"}}); len(got) > 0 {
			t.Errorf("tests of %s import %s/rate: got %v, want no violation", from, rival, got)
		}
	}
}
