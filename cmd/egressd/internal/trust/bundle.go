// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// systemBundles are where hosts have the system's roots in one file, Debian's
// first.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// InstallBundle writes a file with the system's roots and the authority, for
// variables that replace a client's store rather than add to it. A file that
// was written by InstallBundle is written anew, which a change of the system's
// roots makes necessary; any other stays.
func (s *Stores) InstallBundle(file string) (Place, error) {
	if !filepath.IsAbs(file) {
		return Place{}, fmt.Errorf("write the bundle: %s is no absolute path", file)
	}
	file = filepath.Clean(file)
	if slices.Contains(systemBundles, file) {
		return Place{}, fmt.Errorf("write the bundle: %s is the system's own: name another file, or use --system", file)
	}
	known, ours := s.find(Bundle, file)
	if sum, err := fileSum(s.at(file)); err == nil && (!ours || sum != known.Sum) {
		return Place{}, fmt.Errorf("write the bundle: %s is there and not as egressd wrote it: name another file", file)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Place{}, fmt.Errorf("write the bundle: %w", err)
	}
	roots, err := s.systemRoots()
	if err != nil {
		return Place{}, err
	}
	var out bytes.Buffer
	for _, der := range append(roots, s.cert.Raw) {
		out.Write(encode(der))
	}
	sum := sha256.Sum256(out.Bytes())
	p := s.place(Bundle, file)
	p.Sum = hex.EncodeToString(sum[:])
	if err := replaceFile(s.at(file), out.Bytes(), 0o644); err != nil {
		return Place{}, fmt.Errorf("write the bundle: %w", err)
	}
	p.Present = true
	return p, s.note(p)
}

// systemRoots are the system's roots without the authority.
func (s *Stores) systemRoots() (roots [][]byte, err error) {
	for _, path := range systemBundles {
		data, err := os.ReadFile(s.at(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the system's roots: %w", err)
		}
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "CERTIFICATE" && !bytes.Equal(block.Bytes, s.cert.Raw) {
				roots = append(roots, block.Bytes)
			}
		}
		if len(roots) > 0 {
			return roots, nil
		}
	}
	return nil, errors.New("no file with the system's roots was found: apt-get install ca-certificates")
}

func (s *Stores) removeBundle(p Place) error {
	switch sum, err := fileSum(s.at(p.Path)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("remove the bundle: %w", err)
	case sum != p.Sum:
		return fmt.Errorf("remove the bundle: %s is not as egressd wrote it: remove it by hand", p.Path)
	}
	if err := os.Remove(s.at(p.Path)); err != nil {
		return fmt.Errorf("remove the bundle: %w", err)
	}
	return nil
}

func fileSum(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Environment is how clients are told of the authority: lines NAME=value.
// bundle is the path of a bundle, or "" if there is none. certFile is that of
// the authority's certificate.
func Environment(bundle, certFile string) []string {
	var lines []string
	if bundle != "" {
		for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"} {
			lines = append(lines, name+"="+bundle)
		}
	}
	return append(lines, "NODE_EXTRA_CA_CERTS="+certFile)
}
