// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAuthorityFiles(t *testing.T) {
	ca, dir := mustAuthority(t, AuthorityOptions{Host: strings.Repeat("long", 40)})
	if got := ca.Certificate().Subject.CommonName; !strings.HasPrefix(got, "egressd on long") || len(got) != 64 {
		t.Errorf("got the name %q", got)
	}
	if _, err := CreateAuthority(dir, AuthorityOptions{}); !errors.Is(err, ErrAuthorityExists) {
		t.Errorf("got %v, want %v", err, ErrAuthorityExists)
	}
	again, err := OpenAuthority(dir, nil)
	if err != nil || !again.Certificate().Equal(ca.Certificate()) {
		t.Fatalf("got %v", err)
	}
	key := filepath.Join(dir, KeyFile)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660, 0o601} {
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenAuthority(dir, nil); !errors.Is(err, ErrKeyExposed) {
			t.Errorf("mode %04o: got %v, want %v", mode, err, ErrKeyExposed)
		}
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(key, 12345, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenAuthority(dir, nil); !errors.Is(err, ErrKeyExposed) {
			t.Errorf("another's key: got %v, want %v", err, ErrKeyExposed)
		}
		if err := os.Chown(key, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(key, key+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(key+".old", key); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, nil); err == nil {
		t.Error("a key behind a link was taken")
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, nil); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("no key: got %v, want %v", err, ErrNoAuthority)
	}
	_, other := mustAuthority(t, AuthorityOptions{})
	foreign, err := os.ReadFile(filepath.Join(other, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"another key": foreign, "cut": secret[:len(secret)/2], "empty": nil} {
		if err := os.WriteFile(key, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenAuthority(dir, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "\n") || len(content) > 0 && strings.Contains(err.Error(), string(content[30:60])) {
			t.Errorf("%s: got %q", name, err)
		}
	}
	if err := os.WriteFile(key, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	late := func() time.Time { return time.Now().Add(3 * 365 * 24 * time.Hour) }
	if _, err := OpenAuthority(dir, late); err == nil || !strings.Contains(err.Error(), "ended on") {
		t.Errorf("got %v of an authority that ended", err)
	}
	if _, err := OpenAuthority(filepath.Join(dir, "none"), nil); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("got %v, want %v", err, ErrNoAuthority)
	}
}

func TestConstraints(t *testing.T) {
	for _, test := range []struct {
		opt  AuthorityOptions
		name string
		want bool
	}{
		{AuthorityOptions{}, "example.com", true},
		{AuthorityOptions{}, "192.0.2.1", true},
		{AuthorityOptions{PermitDNS: []string{"Example.com"}}, "example.com", true},
		{AuthorityOptions{PermitDNS: []string{"example.com"}}, "a.b.example.com", true},
		{AuthorityOptions{PermitDNS: []string{"example.com"}}, "notexample.com", false},
		{AuthorityOptions{PermitDNS: []string{"example.com"}}, "com", false},
		{AuthorityOptions{PermitDNS: []string{"example.com"}}, "192.0.2.1", false},
		{AuthorityOptions{PermitDNS: []string{"example.com"}}, "2001:db8::1", false},
		{AuthorityOptions{PermitDNS: []string{"example.com"}, PermitIP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, "192.0.2.1", true},
		{AuthorityOptions{PermitDNS: []string{"example.com"}, PermitIP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, "192.0.3.1", false},
		{AuthorityOptions{PermitDNS: []string{"example.com"}, PermitIP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, "2001:db8::1", false},
	} {
		ca, _ := mustAuthority(t, test.opt)
		if got := ca.Permits(test.name); got != test.want {
			t.Errorf("%+v permits %s: got %v, want %v", test.opt, test.name, got, test.want)
		}
		leaf, err := ca.Leaf(test.name)
		if test.want != (err == nil) || !test.want && !errors.Is(err, ErrOutside) {
			t.Errorf("%+v, leaf for %s: got %v", test.opt, test.name, err)
		}
		// Clients hold it to that, too: a leaf that was signed all the same.
		if leaf == nil {
			if leaf, err = ca.sign(test.name); err != nil {
				t.Fatal(err)
			}
		}
		pool := x509.NewCertPool()
		pool.AddCert(ca.Certificate())
		_, err = leaf.Leaf.Verify(x509.VerifyOptions{DNSName: test.name, Roots: pool})
		if test.want != (err == nil) {
			t.Errorf("%+v, verify %s: got %v", test.opt, test.name, err)
		}
		checkOpenssl(t, ca, leaf, test.want)
	}
	for _, bad := range []AuthorityOptions{
		{PermitDNS: []string{""}},
		{PermitDNS: []string{"a..b"}},
		{PermitDNS: []string{"*.example.com"}},
		{PermitDNS: []string{"192.0.2.1"}},
		{PermitDNS: []string{"-a.example"}},
		{PermitIP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	} {
		if _, err := CreateAuthority(filepath.Join(t.TempDir(), "ca"), bad); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// checkOpenssl lets OpenSSL judge, strictly.
func checkOpenssl(t *testing.T, ca *Authority, leaf *tls.Certificate, want bool) {
	t.Helper()
	mustHave(t, "openssl")
	args := []string{"verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", pemFile(t, ca.Certificate()), pemFile(t, leaf.Leaf)}
	out, err := exec.Command("openssl", args...).CombinedOutput()
	if want != (err == nil) {
		t.Errorf("openssl verify: got %v: %s, want good %v", err, out, want)
	}
}

func TestLeaf(t *testing.T) {
	now := time.Now()
	var mu sync.Mutex
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	ca, _ := mustAuthority(t, AuthorityOptions{Now: clock})
	for _, name := range []string{"example.com", "192.0.2.1", "2001:db8::1", strings.Repeat("a.", 40) + "example"} {
		leaf, err := ca.Leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		c := leaf.Leaf
		if err := c.VerifyHostname(name); err != nil {
			t.Error(err)
		}
		if life := c.NotAfter.Sub(c.NotBefore); life > 7*24*time.Hour || c.IsCA || len(c.DNSNames)+len(c.IPAddresses) != 1 {
			t.Errorf("%s: got life %v, authority %v, names %v %v", name, life, c.IsCA, c.DNSNames, c.IPAddresses)
		}
		checkOpenssl(t, ca, leaf, true)
	}
	// One for all who ask at once, and a new one when it has little left.
	certs := make([]*tls.Certificate, 50)
	var tasks sync.WaitGroup
	for i := range certs {
		tasks.Go(func() { certs[i], _ = ca.Leaf("once.example") })
	}
	tasks.Wait()
	for _, c := range certs {
		if c == nil || c != certs[0] {
			t.Fatal("several leaves for one name")
		}
	}
	mu.Lock()
	now = certs[0].Leaf.NotAfter.Add(-leafRest)
	mu.Unlock()
	renewed, err := ca.Leaf("once.example")
	if err != nil || bytes.Equal(renewed.Certificate[0], certs[0].Certificate[0]) || !renewed.Leaf.NotAfter.After(certs[0].Leaf.NotAfter) {
		t.Errorf("got the old leaf, %v", err)
	}
	// The last leaf ends with the authority and is not made again and again.
	mu.Lock()
	now = ca.Certificate().NotAfter.Add(-time.Hour)
	mu.Unlock()
	last, err := ca.Leaf("last.example")
	if err != nil || !last.Leaf.NotAfter.Equal(ca.Certificate().NotAfter) {
		t.Fatalf("got %v, %v", last.Leaf.NotAfter, err)
	}
	if again, err := ca.Leaf("last.example"); err != nil || again != last {
		t.Errorf("got another leaf, %v", err)
	}
}

func TestLeavesAreBounded(t *testing.T) {
	ca, _ := mustAuthority(t, AuthorityOptions{})
	for i := range maxLeaves + 3 {
		e, mine := ca.leaf.entry(fmt.Sprint(i))
		if !mine {
			t.Fatal("a name was there already")
		}
		close(e.ready)
	}
	if got := ca.leaf.order.Len(); got != maxLeaves || len(ca.leaf.names) != maxLeaves {
		t.Errorf("got %d leaves, want %d", got, maxLeaves)
	}
	if _, mine := ca.leaf.entry("0"); !mine {
		t.Error("the oldest was kept")
	}
}
