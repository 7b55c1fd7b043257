// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// writeCert writes a certificate for 127.0.0.1 and its key into dir.
func writeCert(t testing.TB, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// users are logins, of the least cost.
func users(t testing.TB, passwords map[string]string) string {
	t.Helper()
	text := "basic_auth_users:\n"
	for user, password := range passwords {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		text += "  " + user + ": " + string(hash) + "\n"
	}
	return text
}

const tlsSection = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"

// serve serves "hello" by a configuration.
func serve(t testing.TB, c *Config) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })}
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(ln, server, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// get asks and gives the status, 0 for no answer, and the number of the
// certificate.
func get(t testing.TB, url, user, password string) (status int, serial int64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return 0, 0
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || (res.StatusCode == 200) != (string(body) == "hello") {
		t.Errorf("%s: got status %d, body %q and error %v", url, res.StatusCode, body, err)
	}
	if res.TLS != nil {
		serial = res.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	return res.StatusCode, serial
}

func mustOpen(t testing.TB, file string) *Config {
	t.Helper()
	c, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWithoutFile(t *testing.T) {
	addr := serve(t, mustOpen(t, ""))
	if status, _ := get(t, "http://"+addr, "", ""); status != 200 {
		t.Errorf("got status %d", status)
	}
}

// TestReload holds that what is right comes into force at once, certificates
// without any reload, and that what is wrong changes nothing.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	writeCert(t, dir, 1)
	write(t, file, tlsSection+users(t, map[string]string{"prom": "right"}))
	c := mustOpen(t, file)
	url := "https://" + serve(t, c)
	expect := func(when, user, password string, status int, serial int64) {
		t.Helper()
		if gotStatus, gotSerial := get(t, url, user, password); gotStatus != status || gotSerial != serial {
			t.Errorf("%s: %s:%s: got status %d and certificate %d, want %d and %d", when, user, password, gotStatus, gotSerial, status, serial)
		}
	}
	reload := func() error {
		t.Helper()
		change, err := c.Prepare(file)
		if err != nil {
			return err
		}
		defer change.Drop()
		return change.Apply()
	}
	expect("at first", "prom", "right", 200, 1)
	expect("at first", "prom", "wrong", 401, 1)
	expect("at first", "other", "right", 401, 1)
	expect("at first", "", "", 401, 1)
	if status, _ := get(t, strings.Replace(url, "https", "http", 1), "prom", "right"); status == 200 {
		t.Error("got an answer without TLS")
	}

	write(t, file, "tls_server_config: [")
	expect("while the file is wrong", "prom", "right", 200, 1)
	if err := reload(); err == nil || !strings.HasPrefix(err.Error(), file+": ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("reload of a wrong file: got error %v, want one line that names it", err)
	}
	expect("after a wrong reload", "prom", "right", 200, 1)

	write(t, file, tlsSection+users(t, map[string]string{"prom": "new"}))
	expect("before the reload", "prom", "right", 200, 1)
	change, err := c.Prepare(file)
	if err != nil {
		t.Fatal(err)
	}
	change.Drop()
	expect("after a dropped change", "prom", "right", 200, 1)
	for range 3 { // the copies must not run out
		if err := reload(); err != nil {
			t.Fatal(err)
		}
	}
	expect("after the reload", "prom", "new", 200, 1)
	expect("after the reload", "prom", "right", 401, 1)
	writeCert(t, dir, 2)
	expect("with a renewed certificate", "prom", "new", 200, 2)

	for text, want := range map[string]string{
		users(t, map[string]string{"prom": "new"}):          "whether there is TLS",
		tlsSection + "http_server_config: {http2: false}":   "http_server_config.http2",
		tlsSection + "rate_limit: {interval: 1s, burst: 9}": "rate_limit",
	} {
		write(t, file, text)
		if err := reload(); err == nil || err.Error() != want+" has changed: that takes a restart" {
			t.Errorf("%s: got error %v", want, err)
		}
	}
	if _, err := c.Prepare(""); err == nil || !strings.Contains(err.Error(), "restart") {
		t.Errorf("without a file: got error %v", err)
	}
	expect("after all that", "prom", "new", 200, 2)
}

func TestErrorsAreClear(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	writeCert(t, dir, 1)
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "tls_config: {}", "yaml: line 1: field tls_config not found in type web.Config"},
		{"no key", "tls_server_config: {cert_file: cert.pem}", "missing one of key or key_file"},
		{"no certificate", "tls_server_config: {cert_file: gone.pem, key_file: key.pem}",
			"failed to read cert_file (" + dir + "/gone.pem): open " + dir + "/gone.pem: no such file or directory"},
		{"plain password", "basic_auth_users: {prom: hunter2}", "basic_auth_users: a password is no bcrypt hash; make one with htpasswd -nBC 10 USER (crypto/bcrypt: hashedSecret too short to be a bcrypted password)"},
		{"password in the wrong place", "basic_auth_users: hunter2", "yaml: line 1: cannot unmarshal !!str `…` into map[string]config.Secret"},
		{"no YAML", "\t", "yaml: found character that cannot start any token"},
		{"header", "http_server_config: {headers: {X-Own: a}}", `HTTP header "X-Own" can not be configured`},
	} {
		write(t, file, tt.text)
		err := Check(file)
		if err == nil || err.Error() != file+": "+tt.want {
			t.Errorf("%s: got error\n%v\nwant\n%s", tt.name, err, file+": "+tt.want)
		}
	}
	if err := Check(filepath.Join(dir, "gone.yml")); err == nil || err.Error() != dir+"/gone.yml: no such file or directory" {
		t.Errorf("no file: got error %v", err)
	}
	write(t, file, "# "+strings.Repeat("x", maxFile))
	if err := Check(file); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a file too long: got error %v", err)
	}
	write(t, file, "")
	if err := Check(file); err != nil {
		t.Errorf("an empty file: got error %v", err)
	}
}

// FuzzAbsolute holds that names of files, and nothing else, are changed.
func FuzzAbsolute(f *testing.F) {
	f.Add([]byte(tlsSection + "basic_auth_users: {a: b}\n"))
	f.Add([]byte("a: &a {cert_file: x}\ntls_server_config: *a\n"))
	f.Add([]byte("tls_server_config: {cert_file: /x, key_file: [a]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := absolute(text, "/etc/egressd")
		if err != nil {
			return
		}
		twice, err := absolute(once, "/elsewhere")
		if err != nil || string(twice) != string(once) {
			t.Errorf("%q: became %q and then %q (%v)", text, once, twice, err)
		}
	})
}
