// SPDX-License-Identifier: Apache-2.0

package sysunit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestService(t *testing.T) {
	for name, want := range map[string]string{
		"crawler": "crawler.service", "crawler.service": "crawler.service", "web@": "web@.service", "web@1.service": "web@1.service",
		`a\x2db`: `a\x2db.service`, "a:b_c.d": "a:b_c.d.service",
	} {
		if got, err := Service(name); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	for _, bad := range []string{
		"", ".service", "..", "../x", "a/b", "/etc/x", ".hidden", "-x", "@x", "a b", "a\nb", "a%b", "ü", "a.socket", "b.timer", strings.Repeat("x", 248),
	} {
		if got, err := Service(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %q, %v", bad, got, err)
		}
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"usr/lib/systemd/system/plain.service":            "[Unit]\nUser=no\n[Service]\nExecStart=/x\n",
		"usr/lib/systemd/system/user.service":             "[Service]\nUser = alice \n",
		"etc/systemd/system/over.service":                 "[Service]\nUser=bob\n",
		"usr/lib/systemd/system/over.service":             "[Service]\nUser=alice\n",
		"usr/lib/systemd/system/drop.service":             "[Service]\nUser=alice\n",
		"usr/lib/systemd/system/drop.service.d/20-b.conf": "[Service]\nUser=bob\n",
		"etc/systemd/system/drop.service.d/10-a.conf":     "[Service]\nUser=carol\n",
		"usr/lib/systemd/system/hide.service":             "[Service]\nUser=alice\n",
		"usr/lib/systemd/system/hide.service.d/a.conf":    "[Service]\nUser=bob\n",
		"etc/systemd/system/hide.service.d/a.conf":        "[Service]\n",
		"etc/systemd/system/hide.service.d/notes":         "[Service]\nUser=dave\n",
		"usr/lib/systemd/system/tmpl@.service":            "[Service]\nUser=alice\n",
		"etc/systemd/system/tmpl@1.service.d/a.conf":      "[Service]\nUser=one\n",
		"etc/systemd/system/tmpl@.service.d/z.conf":       "[Service]\nUser=all\n",
		"lib/systemd/system/dynamic.service":              "[Service]\nDynamicUser=yes\n",
		"lib/systemd/system/named.service":                "[Service]\nDynamicUser=yes\nUser=dyn\n",
		"lib/systemd/system/lines.service":                "# User=a\n; User=b\n[Service]\nExecStart=/x \\\n# User=c\n User=d\nUser=e\n[Install]\nUser=f",
		"lib/systemd/system/reset.service":                "[Service]\nUser=alice\nUser=\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for unit, want := range map[string]string{
		"plain": "root", "user": "alice", "over": "bob", "drop": "bob", "hide": "alice", "tmpl@": "all", "tmpl@1": "one", "tmpl@2": "all",
		"dynamic": "dynamic", "named": "dyn", "lines": "e", "reset": "root",
	} {
		if got, err := Find(root, unit+".service"); err != nil || got.User != want {
			t.Errorf("%s: got %+v, %v; want user %s", unit, got, err, want)
		}
	}
	if got, err := Find(root, "none.service"); err == nil || err.Error() != "there is no service none.service" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestQuoteEnv(t *testing.T) {
	if got, want := QuoteEnv("a \"b\" \\ `c` $d"), "\"a \\\"b\\\" \\\\ \\`c\\` \\$d\""; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
