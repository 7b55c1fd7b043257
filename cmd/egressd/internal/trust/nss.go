// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/userspace/terminate"
)

// ErrNoCertutil says that databases of NSS cannot be changed from here.
var ErrNoCertutil = errors.New("certutil is not installed: apt-get install libnss3-tools")

// databaseFile is what every database of NSS has since 2009.
const databaseFile = "cert9.db"

// certutilTime is how long certutil may take.
const certutilTime = 30 * time.Second

// databaseGlobs are where Chromium and Firefox keep their databases, from a
// home folder.
var databaseGlobs = []string{
	".pki/nssdb",
	".mozilla/firefox/*",
	"snap/chromium/current/.pki/nssdb",
	"snap/firefox/common/.mozilla/firefox/*",
}

// FindNSS lists the databases of all users of the host.
func (s *Stores) FindNSS() ([]string, error) {
	homes, err := s.homes()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, home := range homes {
		for _, glob := range databaseGlobs {
			matches, err := filepath.Glob(filepath.Join(s.at(home), glob, databaseFile))
			if err != nil {
				return nil, fmt.Errorf("look for databases of NSS: %w", err)
			}
			for _, m := range matches {
				dir := filepath.Dir(m)
				if s.root != "" {
					rel, err := filepath.Rel(s.root, dir)
					if err != nil {
						return nil, fmt.Errorf("look for databases of NSS: %w", err)
					}
					dir = "/" + rel
				}
				if !slices.Contains(found, dir) {
					found = append(found, dir)
				}
			}
		}
	}
	return found, nil
}

// homes are the home folders in the file of users.
func (s *Stores) homes() ([]string, error) {
	data, err := os.ReadFile(s.at("/etc/passwd"))
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	var homes []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && filepath.IsAbs(fields[5]) && fields[5] != "/" && !slices.Contains(homes, fields[5]) {
			homes = append(homes, fields[5])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return homes, nil
}

// InstallNSS puts the authority into the database in the folder db.
func (s *Stores) InstallNSS(ctx context.Context, db string) (Place, error) {
	if !filepath.IsAbs(db) {
		return Place{}, fmt.Errorf("install in the database %s: it is no absolute path", db)
	}
	db = filepath.Clean(db)
	p := s.place(NSS, db)
	if s.hasNSS(ctx, p) {
		p.Present = true
		return p, s.note(p)
	}
	if err := s.note(p); err != nil {
		return Place{}, err
	}
	// The certificate comes by standard input: the owner of the database need
	// not be able to read the authority's folder.
	if _, err := s.certutil(ctx, db, encode(s.cert.Raw), "-A", "-n", nickname(p), "-t", "C,,"); err != nil {
		return Place{}, errors.Join(fmt.Errorf("install in the database %s: %w", db, err), s.forget(p))
	}
	if p.Present = s.hasNSS(ctx, p); !p.Present {
		return Place{}, fmt.Errorf("certutil did not take the authority into the database %s", db)
	}
	return p, nil
}

// hasNSS reports whether the database has what p put there.
func (s *Stores) hasNSS(ctx context.Context, p Place) bool {
	out, err := s.certutil(ctx, p.Path, nil, "-L", "-n", nickname(p), "-r")
	return err == nil && p.Authority == fingerprintOf(out)
}

func (s *Stores) removeNSS(ctx context.Context, p Place) error {
	if _, err := os.Stat(filepath.Join(s.at(p.Path), databaseFile)); errors.Is(err, os.ErrNotExist) {
		return nil // the database is gone
	}
	if _, err := exec.LookPath("certutil"); err != nil {
		return ErrNoCertutil
	}
	if !s.hasNSS(ctx, p) {
		return nil
	}
	if _, err := s.certutil(ctx, p.Path, nil, "-D", "-n", nickname(p)); err != nil {
		return fmt.Errorf("uninstall from the database %s: %w", p.Path, err)
	}
	return nil
}

func nickname(p Place) string { return "egressd " + short(p.Authority) }

// certutil runs that program on the database db, as the database's owner: what
// lies in a user's folder is that user's, links included.
func (s *Stores) certutil(ctx context.Context, db string, stdin []byte, args ...string) ([]byte, error) {
	path, err := exec.LookPath("certutil")
	if err != nil {
		return nil, ErrNoCertutil
	}
	info, err := os.Lstat(filepath.Join(s.at(db), databaseFile))
	if err != nil {
		return nil, fmt.Errorf("no database of NSS: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", databaseFile)
	}
	ctx, cancel := context.WithTimeout(ctx, certutilTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(args, "-d", "sql:"+s.at(db))...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = []string{"HOME=" + s.at(db), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	// A session of its own has no terminal to ask a password from.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 && owner.Uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("certutil: %w: %s", err, oneLine(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// fingerprintOf is that of a certificate in DER, "" if it is none.
func fingerprintOf(der []byte) string {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return ""
	}
	return terminate.Fingerprint(cert)
}
