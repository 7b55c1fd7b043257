// SPDX-License-Identifier: Apache-2.0

// Package trust puts the host's certificate authority where clients look for
// those they trust, and takes exactly that away again. What it has done is
// written down beside the authority.
//
// A Stores may be used by one goroutine at a time, and by one process.
package trust

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/userspace/terminate"
)

// Kind is a kind of store.
type Kind string

// Kinds of stores.
const (
	System Kind = "system" // the host's, by update-ca-certificates
	NSS    Kind = "nss"    // a database of Chromium or Firefox
	Bundle Kind = "bundle" // a file with the system's roots and the authority
)

// Place is where the authority was put. Paths are those without the root.
type Place struct {
	Kind Kind   `json:"kind"`
	Path string `json:"path"` // of the file, or the database's folder
	// Authority is the fingerprint of the certificate that was put there.
	Authority string `json:"authority"`
	// Sum is the SHA-256 of a bundle as it was written.
	Sum string `json:"sum,omitempty"`
	// Present says that the place still has it. It is found out, not kept.
	Present bool `json:"present"`
}

// recordFile is where places are kept, in the folder of the authority.
const recordFile = "installed.json"

// Stores are all the stores of a host.
type Stores struct {
	root  string
	dir   string
	cert  *x509.Certificate
	known []Place
}

// Open reads the authority in the folder dir and where it was put. All paths,
// that of dir too, are taken below root; root is "" for those of this host.
func Open(root, dir string) (*Stores, error) {
	s := &Stores{root: root, dir: dir}
	cert, err := terminate.ReadCertificate(s.at(dir))
	if err != nil {
		return nil, err
	}
	s.cert = cert
	if s.known, err = readRecord(s.at(filepath.Join(dir, recordFile))); err != nil {
		return nil, err
	}
	return s, nil
}

// Installed reports whether something is installed of the authority in the
// folder dir below root, be its certificate there or not.
func Installed(root, dir string) (bool, error) {
	s := &Stores{root: root}
	known, err := readRecord(s.at(filepath.Join(dir, recordFile)))
	return len(known) > 0, err
}

func readRecord(path string) (places []Place, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read where the authority was installed: %w", err)
	}
	if err := json.Unmarshal(data, &places); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return places, nil
}

// at is path below the root.
func (s *Stores) at(path string) string {
	if s.root == "" {
		return path
	}
	return filepath.Join(s.root, path)
}

// Certificate is that of the authority.
func (s *Stores) Certificate() *x509.Certificate { return s.cert }

// CertFile is the path of the authority's certificate.
func (s *Stores) CertFile() string { return filepath.Join(s.dir, terminate.CertFile) }

// Places lists where the authority was put, and whether it is still there.
func (s *Stores) Places(ctx context.Context) []Place {
	places := slices.Clone(s.known)
	for i := range places {
		places[i].Present = s.present(ctx, places[i])
	}
	return places
}

func (s *Stores) present(ctx context.Context, p Place) bool {
	switch p.Kind {
	case System:
		return s.hasSystem(p)
	case NSS:
		return s.hasNSS(ctx, p)
	case Bundle:
		sum, err := fileSum(s.at(p.Path))
		return err == nil && sum == p.Sum
	}
	return false
}

// Uninstall takes the authority away from every place and returns those from
// which it did. What fails stays written down; the others are done all the
// same.
func (s *Stores) Uninstall(ctx context.Context) (removed []Place, err error) {
	var failed []error
	for _, p := range slices.Clone(s.known) {
		if err := s.remove(ctx, p); err != nil {
			failed = append(failed, err)
			continue
		}
		removed = append(removed, p)
		if err := s.forget(p); err != nil {
			failed = append(failed, err)
		}
	}
	return removed, errors.Join(failed...)
}

func (s *Stores) remove(ctx context.Context, p Place) error {
	switch p.Kind {
	case System:
		return s.removeSystem(ctx, p)
	case NSS:
		return s.removeNSS(ctx, p)
	case Bundle:
		return s.removeBundle(p)
	}
	return fmt.Errorf("%s: unknown kind %q of store", p.Path, p.Kind)
}

// note writes p down, before or after what is done there: a place that is
// written down and has nothing is removed well.
func (s *Stores) note(p Place) error {
	s.known = slices.DeleteFunc(s.known, p.same)
	s.known = append(s.known, p)
	return s.save()
}

func (s *Stores) forget(p Place) error {
	s.known = slices.DeleteFunc(s.known, p.same)
	return s.save()
}

func (p Place) same(other Place) bool { return p.Kind == other.Kind && p.Path == other.Path }

// find is the place as it was written down.
func (s *Stores) find(kind Kind, path string) (Place, bool) {
	i := slices.IndexFunc(s.known, (Place{Kind: kind, Path: path}).same)
	if i < 0 {
		return Place{}, false
	}
	return s.known[i], true
}

func (s *Stores) save() error {
	path := s.at(filepath.Join(s.dir, recordFile))
	if len(s.known) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write down where the authority is installed: %w", err)
		}
		return nil
	}
	data, err := json.MarshalIndent(s.known, "", "  ")
	if err != nil {
		return fmt.Errorf("write down where the authority is installed: %w", err)
	}
	if err := replaceFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write down where the authority is installed: %w", err)
	}
	return nil
}

// place is a new one of the authority.
func (s *Stores) place(kind Kind, path string) Place {
	return Place{Kind: kind, Path: path, Authority: terminate.Fingerprint(s.cert)}
}

// short names the authority in names of files and nicknames.
func short(fingerprint string) string { return fingerprint[:min(len(fingerprint), 16)] }

// replaceFile writes path as a whole: who reads it sees the old file or the new
// one.
func replaceFile(path string, data []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".egressd-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
