// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"
)

// webPolicy writes a policy file whose metrics have a web configuration.
func (d *daemon) webPolicy(t testing.TB, web string) {
	t.Helper()
	mustWrite(t, d.config, fmt.Sprintf("scope: {cgroups: [%s]}\nmetrics: {listen: \"127.0.0.1:0\", web_config_file: %s}\nadmin: {socket: %s}\n", d.scope.path, web, d.socket))
}

// TestWebConfig has a real Prometheus scrape over TLS with a login, and one with
// a wrong password; and holds that the page is behind the same, that a web
// configuration that is wrong is told and changes nothing, and that one that is
// right comes into force by a reload.
func TestWebConfig(t *testing.T) {
	t.Parallel()
	d := prepareDaemon(t, newGroup(t))
	web, cert, key := filepath.Join(d.dir, "web.yml"), filepath.Join(d.dir, "cert.pem"), filepath.Join(d.dir, "key.pem")
	mustRun(t, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
		"-subj", "/CN=egressd", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
	login := func(password string) {
		t.Helper()
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, web, fmt.Sprintf("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prom: %q}\n", hash))
	}

	// At the start, a file that is wrong is an error.
	mustWrite(t, web, "tls_server_config: {cert: [")
	d.webPolicy(t, web)
	for _, args := range [][]string{{"check"}, {"run", "--pin-dir", d.pins}} {
		p := start(t, how{}, append([]string{here.bin, args[0], "--config", d.config}, args[1:]...)...)
		status := p.wait(t, 20*time.Second)
		text := p.stderr.String()
		if want := "egressd: metrics.web_config_file: " + web + ": "; status != 1 || !strings.HasPrefix(text, want) || strings.Count(text, "\n") != 1 {
			t.Errorf("%v with a wrong file: got status %d and %q, want 1 and one line that begins with %q", args, status, text, want)
		}
	}

	login("right")
	d.start(t)
	if got := d.ask(t, "status"); !strings.Contains(got, "https://127.0.0.1:") {
		t.Errorf("status does not say where the metrics are by TLS:\n%s", got)
	}
	addr := d.status(t).Metrics
	job := func(name, scheme, password string) string {
		return fmt.Sprintf("{job_name: %s, scheme: %s, tls_config: {ca_file: %s}, basic_auth: {username: prom, password: %s}, static_configs: [{targets: [%q]}]}",
			name, scheme, cert, password, addr)
	}
	server := startScraping(t, strings.Join([]string{
		job("good", "https", "right"), job("wrong", "https", "hunter2"), job("plain", "http", "right"), job("later", "https", "changed"),
	}, ", "), `up{job="good"} == 1 and on () up{job="wrong"} == 0 and on () up{job="plain"} == 0 and on () up{job="later"} == 0`)
	if got := server.query(t, `egressd_build_info`); len(got) != 1 || got[0].labels["job"] != "good" {
		t.Errorf("got %v, want what the job with the right login scraped", got)
	}
	if got := server.query(t, `scrape_samples_scraped{job!="good"} > 0`); len(got) != 0 {
		t.Errorf("without the login: got %v", got)
	}
	// Everything at the address is behind the login.
	for _, path := range []string{"/", "/metrics", "/api/v1/state"} {
		for login, want := range map[string]string{"prom:hunter2": "401", "": "401"} {
			args := []string{"curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", cert, "https://" + addr + path}
			if login != "" {
				args = append(args, "-u", login)
			}
			if got := mustRun(t, args[0], args[1:]...); got != want {
				t.Errorf("%s as %q: got status %s, want %s", path, login, got, want)
			}
		}
	}
	if got := mustRun(t, "curl", "-sS", "--cacert", cert, "-u", "prom:right", "https://"+addr+"/"); !strings.Contains(got, "egressd") {
		t.Errorf("with the login: got %q", got)
	}
	if resp, err := http.Get("http://" + addr + "/metrics"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("without TLS: got an answer")
		}
	}

	// Reloads: first one that must change nothing, then one that does.
	mustWrite(t, web, "basic_auth_users: {prom: plain}")
	d.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the reload to fail", func() bool { return !d.status(t).Config.OK })
	if got := d.status(t).Config.Error; !strings.HasPrefix(got, "metrics.web_config_file: "+web+": basic_auth_users: ") || strings.Contains(got, "\n") {
		t.Errorf("after a wrong reload: got error %q", got)
	}
	// Scrapes go on, and tell.
	waitFor(t, 10*time.Second, "a scrape after it", func() bool {
		return len(server.query(t, `egressd_config_last_reload_successful{job="good"} == 0`)) == 1
	})
	login("changed")
	d.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the new password", func() bool {
		return len(server.query(t, `up{job="later"} == 1 and on () up{job="good"} == 0`)) == 1
	})
}
