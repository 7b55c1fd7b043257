// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ErrNoSystemStore says that the host's store cannot be changed from here.
var ErrNoSystemStore = errors.New("update-ca-certificates is not installed: apt-get install ca-certificates, or use --bundle FILE")

// Paths of Debian's store (update-ca-certificates(8)).
const (
	anchorDir   = "/usr/local/share/ca-certificates"
	hashedDir   = "/etc/ssl/certs"
	packagedDir = "/usr/share/ca-certificates"
	listFile    = "/etc/ca-certificates.conf"
	hooksDir    = "/etc/ca-certificates/update.d"
)

// updateTime is how long the host's store may take to be made anew; a hook
// makes Java's.
const updateTime = 2 * time.Minute

// InstallSystem puts the authority into the host's store.
func (s *Stores) InstallSystem(ctx context.Context) (Place, error) {
	if _, err := exec.LookPath("update-ca-certificates"); err != nil {
		return Place{}, ErrNoSystemStore
	}
	p := s.place(System, filepath.Join(anchorDir, "egressd-"+short(s.place(System, "").Authority)+".crt"))
	if err := os.MkdirAll(s.at(anchorDir), 0o755); err != nil {
		return Place{}, fmt.Errorf("install in the system's store: %w", err)
	}
	if err := replaceFile(s.at(p.Path), encode(s.cert.Raw), 0o644); err != nil {
		return Place{}, fmt.Errorf("install in the system's store: %w", err)
	}
	if err := s.note(p); err != nil {
		return Place{}, err
	}
	if err := s.updateSystem(ctx); err != nil {
		return Place{}, err
	}
	if p.Present = s.hasSystem(p); !p.Present {
		return Place{}, fmt.Errorf("update-ca-certificates did not take %s into the system's store", p.Path)
	}
	return p, nil
}

// updateSystem makes the host's store anew.
func (s *Stores) updateSystem(ctx context.Context) error {
	var args []string
	if s.root != "" {
		args = []string{
			"--certsconf", s.at(listFile), "--certsdir", s.at(packagedDir), "--localcertsdir", s.at(anchorDir),
			"--etccertsdir", s.at(hashedDir), "--hooksdir", s.at(hooksDir),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "update-ca-certificates", args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return ErrNoSystemStore
	}
	if err != nil {
		return fmt.Errorf("run update-ca-certificates: %w: %s", err, oneLine(out))
	}
	return nil
}

// hasSystem reports whether the host's store has what p put there.
func (s *Stores) hasSystem(p Place) bool {
	ours, err := os.ReadFile(s.at(p.Path))
	if err != nil {
		return false
	}
	block, _ := pem.Decode(ours)
	all, err := os.ReadFile(s.at(systemBundles[0]))
	return err == nil && block != nil && holds(all, block.Bytes)
}

// holds reports whether a file in PEM has the certificate.
func holds(file, der []byte) bool {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if bytes.Equal(block.Bytes, der) {
			return true
		}
	}
	return false
}

func (s *Stores) removeSystem(ctx context.Context, p Place) error {
	err := os.Remove(s.at(p.Path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("uninstall from the system's store: %w", err)
	}
	return s.updateSystem(ctx)
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// oneLine is the last line of what a program said.
func oneLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
