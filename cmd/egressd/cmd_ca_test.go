// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/userspace/terminate"
)

// caHost is the file tree of a host in a test.
type caHost struct {
	t    *testing.T
	root string
}

// newCAHost makes a host with one root certificate in Debian's store.
func newCAHost(t *testing.T) *caHost {
	t.Helper()
	h := &caHost{t, t.TempDir()}
	other, err := terminate.CreateAuthority(filepath.Join(t.TempDir(), "other"), terminate.AuthorityOptions{Host: "somebody else"})
	if err != nil {
		t.Fatal(err)
	}
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})
	h.write("/usr/share/ca-certificates/other.crt", string(root))
	h.write("/etc/ca-certificates.conf", "other.crt\n")
	h.write("/etc/ca-certificates/update.d/README", "no hooks\n")
	h.write("/etc/ssl/certs/ca-certificates.crt", string(root))
	h.write("/usr/local/share/ca-certificates/README", "")
	h.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbin:x:2:2::/:/bin/false\n")
	return h
}

func (h *caHost) write(path, content string) {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *caHost) read(path string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

func (h *caHost) has(path string) bool {
	_, err := os.Lstat(filepath.Join(h.root, path))
	return err == nil
}

// run runs an egressd ca command on the host.
func (h *caHost) run(args ...string) (status int, stdout, stderr string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	e := hostEnv()
	e.stdout, e.stderr = &out, &errs
	cmd := newCACommand(e)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append(args, "--root", h.root))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	status = report(&errs, cmd.ExecuteContext(context.Background()))
	return status, out.String(), errs.String()
}

// must runs a command that has to succeed and returns what it printed.
func (h *caHost) must(args ...string) string {
	h.t.Helper()
	status, stdout, stderr := h.run(args...)
	if status != statusDone || stderr != "" {
		h.t.Fatalf("ca %s: got status %d, %s", strings.Join(args, " "), status, stderr)
	}
	return stdout
}

// refuses runs a command that has to fail with one line that has all of want.
func (h *caHost) refuses(want []string, args ...string) {
	h.t.Helper()
	status, _, stderr := h.run(args...)
	if status == statusDone || strings.Count(stderr, "\n") != 1 {
		h.t.Errorf("ca %s: got status %d, %q, want one line", strings.Join(args, " "), status, stderr)
	}
	for _, w := range want {
		if !strings.Contains(stderr, w) {
			h.t.Errorf("ca %s: got %q, want %q in it", strings.Join(args, " "), stderr, w)
		}
	}
}

const (
	caCert = terminate.DefaultDir + "/" + terminate.CertFile
	caKey  = terminate.DefaultDir + "/" + terminate.KeyFile
)

func TestCAInit(t *testing.T) {
	h := newCAHost(t)
	h.refuses([]string{"no certificate authority", "sudo egressd ca init"}, "show")
	h.refuses([]string{"no certificate authority", "sudo egressd ca init"}, "install", "--system")
	out := h.must("init", "--permit-dns", "example.com,example.org", "--permit-ip", "127.0.0.0/8")
	for _, want := range []string{"egressd on ", "example.com, example.org, 127.0.0.0/8", "next: egressd ca install"} {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want %q in it", out, want)
		}
	}
	for path, want := range map[string]os.FileMode{caCert: 0o644, caKey: 0o600} {
		info, err := os.Stat(filepath.Join(h.root, path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	before := h.read(caCert)
	h.refuses([]string{"there is a certificate authority already", "--replace"}, "init")
	if h.read(caCert) != before {
		t.Error("the authority has changed")
	}
	h.must("install", "--bundle", "/etc/bundle.pem")
	h.refuses([]string{"egressd ca uninstall"}, "init", "--replace")
	h.must("uninstall")
	h.must("init", "--replace")
	if h.read(caCert) == before {
		t.Error("the authority was not replaced")
	}
	if out := h.must("show"); !strings.Contains(out, "any name and any address") || !strings.Contains(out, "installed nowhere") {
		t.Errorf("got %q", out)
	}
	h.refuses([]string{"--permit-ip", "nonsense"}, "init", "--permit-dns", "a.example", "--permit-ip", "nonsense")
	h.refuses([]string{"needs init, show, install or uninstall"})
	h.refuses([]string{"--system, --nss, --nss-db or --bundle"}, "install")
}

func TestCABundle(t *testing.T) {
	h := newCAHost(t)
	h.must("init")
	out := h.must("install", "--bundle", "/etc/egressd/../bundle.pem")
	for _, want := range []string{"installed: bundle in /etc/bundle.pem", "SSL_CERT_FILE=/etc/bundle.pem", "REQUESTS_CA_BUNDLE=/etc/bundle.pem", "NODE_EXTRA_CA_CERTS=" + caCert} {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want %q in it", out, want)
		}
	}
	if got, want := h.read("/etc/bundle.pem"), h.read("/etc/ssl/certs/ca-certificates.crt")+h.read(caCert); got != want {
		t.Errorf("got the bundle %s, want %s", got, want)
	}
	// The system's roots change, and with --system have the authority too.
	h.write("/etc/ssl/certs/ca-certificates.crt", h.read("/etc/ssl/certs/ca-certificates.crt")+h.read(caCert))
	h.must("install", "--bundle", "/etc/bundle.pem")
	if got := strings.Count(h.read("/etc/bundle.pem"), "BEGIN CERTIFICATE"); got != 2 {
		t.Errorf("got %d certificates, want 2", got)
	}
	h.write("/etc/mine.pem", "mine")
	h.refuses([]string{"/etc/mine.pem", "name another file"}, "install", "--bundle", "/etc/mine.pem")
	h.refuses([]string{"system's own"}, "install", "--bundle", "/etc/ssl/certs/ca-certificates.crt")
	h.refuses([]string{"absolute"}, "install", "--bundle", "bundle.pem")

	h.write("/etc/bundle.pem", "changed by somebody")
	if out := h.must("show"); !strings.Contains(out, "missing or changed: bundle in /etc/bundle.pem") {
		t.Errorf("got %q", out)
	}
	h.refuses([]string{"/etc/bundle.pem", "by hand"}, "uninstall")
	if h.read("/etc/bundle.pem") != "changed by somebody" {
		t.Error("a changed bundle was removed")
	}
	if err := os.Remove(filepath.Join(h.root, "/etc/bundle.pem")); err != nil {
		t.Fatal(err)
	}
	h.must("uninstall")
	if out := h.must("uninstall"); !strings.Contains(out, "installed nowhere") {
		t.Errorf("got %q", out)
	}
	if h.has(terminate.DefaultDir+"/installed.json") || h.read("/etc/mine.pem") != "mine" {
		t.Error("uninstall left its record, or touched what is not its own")
	}
}

func TestCASystem(t *testing.T) {
	if _, err := exec.LookPath("update-ca-certificates"); err != nil {
		t.Skip("needs update-ca-certificates: apt-get install ca-certificates")
	}
	h := newCAHost(t)
	h.must("init")
	h.must("install", "--system")
	h.must("install", "--system") // once more changes nothing
	if !strings.Contains(h.read("/etc/ssl/certs/ca-certificates.crt"), h.read(caCert)) {
		t.Error("the system's store has not the authority")
	}
	if got := strings.Count(h.read("/etc/ssl/certs/ca-certificates.crt"), "BEGIN CERTIFICATE"); got != 2 {
		t.Errorf("got %d certificates, want 2", got)
	}
	if out := h.must("show"); !strings.Contains(out, "installed: system in /usr/local/share/ca-certificates/egressd-") {
		t.Errorf("got %q", out)
	}
	if out := h.must("show", "--json"); !strings.Contains(out, `"present": true`) || strings.Contains(out, "PRIVATE") {
		t.Errorf("got %q", out)
	}
	h.must("uninstall")
	if got := h.read("/etc/ssl/certs/ca-certificates.crt"); strings.Contains(got, h.read(caCert)) || strings.Count(got, "BEGIN") != 1 {
		t.Errorf("got %q after uninstall", got)
	}
	left, err := filepath.Glob(filepath.Join(h.root, "/usr/local/share/ca-certificates/*.crt"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestCANSS(t *testing.T) {
	certutil, err := exec.LookPath("certutil")
	if err != nil {
		t.Skip("needs certutil: apt-get install libnss3-tools")
	}
	h := newCAHost(t)
	h.must("init")
	h.refuses([]string{"no database", "--nss-db"}, "install", "--nss")
	databases := []string{"/home/ann/.pki/nssdb", "/home/ann/.mozilla/firefox/x.default", "/srv/nss"}
	for _, db := range databases {
		dir := filepath.Join(h.root, db)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(certutil, "-N", "--empty-password", "-d", "sql:"+dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	list := func(db string) string {
		out, err := exec.Command(certutil, "-L", "-d", "sql:"+filepath.Join(h.root, db)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	h.must("install", "--nss", "--nss-db", "/srv/nss")
	h.must("install", "--nss") // once more changes nothing
	for _, db := range databases {
		if got := list(db); strings.Count(got, "egressd ") != 1 || !strings.Contains(got, "C,,") {
			t.Errorf("%s: got %s", db, got)
		}
	}
	if out := h.must("show"); strings.Count(out, "installed: nss in ") != 3 {
		t.Errorf("got %q", out)
	}
	if err := os.RemoveAll(filepath.Join(h.root, "/srv/nss")); err != nil {
		t.Fatal(err)
	}
	h.must("uninstall")
	for _, db := range databases[:2] {
		if got := list(db); strings.Contains(got, "egressd") {
			t.Errorf("%s: got %s after uninstall", db, got)
		}
	}
	h.refuses([]string{"/etc", "no database"}, "install", "--nss-db", "/etc")
}

// TestCANSSOfAnotherUser proves that a user's database is changed as that user:
// what root would make there could not be used, and a link could lead anywhere.
func TestCANSSOfAnotherUser(t *testing.T) {
	certutil, err := exec.LookPath("certutil")
	if err != nil {
		t.Skip("needs certutil: apt-get install libnss3-tools")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	const nobody = 65534
	h := newCAHost(t)
	h.must("init")
	// Only its owner may enter the folder of a test.
	for _, dir := range []string{filepath.Dir(h.root), h.root} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	db := filepath.Join(h.root, "/home/ann/.pki/nssdb")
	if err := os.MkdirAll(db, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(certutil, "-N", "--empty-password", "-d", "sql:"+db).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	secret := filepath.Join(db, "root.db")
	if err := os.Rename(filepath.Join(db, "cert9.db"), secret); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(db, "cert9.db")); err != nil {
		t.Fatal(err)
	}
	h.refuses([]string{"no file"}, "install", "--nss-db", "/home/ann/.pki/nssdb")
	if err := os.Rename(secret, filepath.Join(db, "cert9.db")); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(db + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, db) {
		if err := os.Chown(name, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	h.must("install", "--nss")
	files, err = filepath.Glob(db + "/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Uid; got != nobody {
			t.Errorf("%s belongs to uid %d, want %d", name, got, nobody)
		}
	}
	h.must("uninstall")
}
