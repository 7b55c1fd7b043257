// SPDX-License-Identifier: Apache-2.0

// Package web serves HTTP with TLS and logins as the exporters of Prometheus do,
// by a web configuration file:
//
//	https://prometheus.io/docs/prometheus/latest/configuration/https/
//
// Exporters read that file anew for every connection and request, and answer
// none while it is wrong. Here what they read is a copy that was checked: a file
// that is wrong changes nothing until it is mended and the daemon reloads.
// Certificates and keys themselves are read for every connection, so that they
// can be renewed at any time.
package web

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	toolkit "github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// Config is the web configuration that is in force. Made by Open; Close frees
// it. It is safe for concurrent use.
type Config struct {
	mu  sync.Mutex
	now checked
}

// checked is a file that was read and found right. The zero checked is that of
// no file: no TLS, and no login.
type checked struct {
	file string
	// copied holds the text, with its relative names made absolute.
	copied *os.File
	fixed  fixed
}

// fixed is what only counts when serving begins.
type fixed struct {
	file, tls, http2 bool
	limit            toolkit.RateLimiterConfig
}

// Open reads the file and what it names; "" stands for none.
func Open(file string) (*Config, error) {
	c, err := read(file)
	if err != nil {
		return nil, err
	}
	return &Config{now: c}, nil
}

// Check reports what is wrong with a file.
func Check(file string) error {
	c, err := read(file)
	c.close()
	return err
}

// TLS reports whether there is TLS.
func (c *Config) TLS() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.fixed.tls
}

// Close frees the configuration. Nothing may be served any more.
func (c *Config) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.close()
	return nil
}

// Change is a configuration that was checked and is not in force yet. Its owner
// calls Drop at the end, whether it was applied or not. A nil Change changes
// nothing.
type Change struct {
	of   *Config
	next checked
}

// Prepare reads a file that is to take the place of the one in force.
func (c *Config) Prepare(file string) (*Change, error) {
	next, err := read(file)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old := c.now.fixed
	c.mu.Unlock()
	for _, part := range []struct {
		what string
		same bool
	}{
		{"whether there is such a file", old.file == next.fixed.file},
		{"whether there is TLS", old.tls == next.fixed.tls},
		{"http_server_config.http2", old.http2 == next.fixed.http2},
		{"rate_limit", old.limit == next.fixed.limit},
	} {
		if !part.same {
			next.close()
			return nil, fmt.Errorf("%s has changed: that takes a restart", part.what)
		}
	}
	return &Change{c, next}, nil
}

// Apply puts the change in force, for connections and requests that begin from
// now on.
func (c *Change) Apply() error {
	if c == nil || c.next.copied == nil {
		return nil
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	// Who serves knows the copy by its number, so the new one takes that over,
	// in one step.
	if err := unix.Dup3(int(c.next.copied.Fd()), int(c.of.now.copied.Fd()), unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("put %s in force: %w", c.next.file, err)
	}
	c.of.now.file = c.next.file
	return nil
}

// Drop frees what the change holds.
func (c *Change) Drop() {
	if c != nil {
		c.next.close()
	}
}

// Serve answers on ln until the server is shut down.
func (c *Config) Serve(ln net.Listener, server *http.Server, log *slog.Logger) error {
	c.mu.Lock()
	name := ""
	if c.now.copied != nil {
		name = c.now.name()
	}
	c.mu.Unlock()
	if name == "" {
		return server.Serve(ln)
	}
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	return toolkit.Serve(ln, server, &toolkit.FlagConfig{WebConfigFile: &name}, log)
}

// name is that of the copy.
func (c checked) name() string { return fmt.Sprintf("/proc/self/fd/%d", c.copied.Fd()) }

func (c checked) close() {
	if c.copied != nil {
		_ = c.copied.Close()
	}
}

// maxFile bounds the file.
const maxFile = 1 << 20

func read(file string) (c checked, err error) {
	if file == "" {
		return checked{}, nil
	}
	defer func() {
		if err != nil {
			c.close()
			c, err = checked{}, fmt.Errorf("%s: %w", file, err)
		}
	}()
	text, err := os.ReadFile(file)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return c, err
	}
	if len(text) > maxFile {
		return c, fmt.Errorf("has more than %d bytes", maxFile)
	}
	text, err = absolute(text, filepath.Dir(file))
	if err != nil {
		return c, err
	}
	fd, err := unix.MemfdCreate("egressd-web-config", unix.MFD_CLOEXEC)
	if err != nil {
		return c, fmt.Errorf("keep a copy: %w", err)
	}
	c = checked{file: file, copied: os.NewFile(uintptr(fd), "egressd-web-config")}
	if _, err := c.copied.Write(text); err != nil {
		return c, fmt.Errorf("keep a copy: %w", err)
	}
	if err := toolkit.Validate(c.name()); err != nil {
		return c, c.explain(err)
	}
	parsed := toolkit.Config{HTTPConfig: toolkit.HTTPConfig{HTTP2: true}}
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		return c, c.explain(err)
	}
	c.fixed = fixed{file: true, tls: parsed.TLSConfig.IsEnabled(), http2: parsed.HTTPConfig.HTTP2, limit: parsed.RateLimiterConfig}
	return c, nil
}

// quoted is what the YAML package quotes of a value that it cannot take: it may
// be a password.
var quoted = regexp.MustCompile("`[^`]*`")

// explain makes one line of an error about the copy.
func (c checked) explain(err error) error {
	text := strings.ReplaceAll(err.Error(), c.name(), c.file)
	text = quoted.ReplaceAllString(text, "`…`")
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "unmarshal errors:", "")), " ")
	if strings.Contains(text, "bcrypt") {
		text = "basic_auth_users: a password is no bcrypt hash; make one with htpasswd -nBC 10 USER (" + text + ")"
	}
	return errors.New(text)
}

// absolute makes the names of files in the text, which are relative to the
// folder of the file, independent of it.
func absolute(text []byte, dir string) ([]byte, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find its folder: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil || doc.Kind == 0 {
		return text, nil // what is wrong is told by who reads it next
	}
	changed := false
	for _, section := range values(doc.Content[0], "tls_server_config") {
		for _, key := range []string{"cert_file", "key_file", "client_ca_file"} {
			for _, name := range values(section, key) {
				if name.Kind == yaml.ScalarNode && name.Value != "" && !filepath.IsAbs(name.Value) {
					name.Value, changed = filepath.Join(dir, name.Value), true
				}
			}
		}
	}
	if !changed {
		return text, nil
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	if err := errors.Join(enc.Encode(&doc), enc.Close()); err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	return out.Bytes(), nil
}

// values are those of a key of a mapping.
func values(n *yaml.Node, key string) (out []*yaml.Node) {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			out = append(out, n.Content[i+1])
		}
	}
	return out
}
