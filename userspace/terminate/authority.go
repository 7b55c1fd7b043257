// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultDir is the folder of the host's authority.
const DefaultDir = "/var/lib/egressd/ca"

// Names of the files in that folder.
const (
	CertFile = "ca.pem"
	KeyFile  = "key.pem"
)

const (
	authorityLife = 2 * 365 * 24 * time.Hour
	// backdate lets a certificate be valid on hosts whose clock is slow.
	backdate = 24 * time.Hour
	maxPEM   = 64 << 10
)

// Errors of authorities.
var (
	// ErrNoAuthority says that the folder has no authority.
	ErrNoAuthority = errors.New("no certificate authority")
	// ErrAuthorityExists says that the folder has one already.
	ErrAuthorityExists = errors.New("there is a certificate authority already")
	// ErrKeyExposed says that others than the owner could read or replace the key.
	ErrKeyExposed = errors.New("the key is not safe")
	// ErrOutside says that the authority may not sign for a name.
	ErrOutside = errors.New("outside the authority's constraints")
)

// Authority is the certificate authority of one host. It is safe for
// concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	now  func() time.Time
	leaf leafCache
}

// AuthorityOptions are what a new authority is for.
type AuthorityOptions struct {
	// Host is the name of this host, for people who see the certificate.
	Host string
	// PermitDNS are the domains it may sign for, each with all below it. None
	// means any name and any address.
	PermitDNS []string
	// PermitIP are the addresses it may sign for beside PermitDNS. Where
	// PermitDNS has domains and this is empty, it signs for no address.
	PermitIP []netip.Prefix
	Now      func() time.Time // nil: time.Now
}

// CreateAuthority makes an authority in the folder dir, which it makes if need
// be: a key on P-256 that its owner alone can read, and a certificate valid for
// two years. An authority that is there already stays: ErrAuthorityExists.
func CreateAuthority(dir string, opt AuthorityOptions) (*Authority, error) {
	now := time.Now
	if opt.Now != nil {
		now = opt.Now
	}
	template, err := authorityTemplate(opt, now())
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the authority: %w", err)
	}
	for _, name := range []string{CertFile, KeyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil, fmt.Errorf("%w: %s", ErrAuthorityExists, filepath.Join(dir, name))
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the authority's key: %w", err)
	}
	defer clear(secret)
	// The key goes first: a folder with a certificate alone would look whole.
	if err := writeNew(filepath.Join(dir, KeyFile), 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: secret}); err != nil {
		return nil, err
	}
	if err := writeNew(filepath.Join(dir, CertFile), 0o644, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		_ = os.Remove(filepath.Join(dir, KeyFile))
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	return newAuthority(cert, key, now), nil
}

func newAuthority(cert *x509.Certificate, key crypto.Signer, now func() time.Time) *Authority {
	return &Authority{cert: cert, key: key, now: now}
}

func authorityTemplate(opt AuthorityOptions, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"egressd"}, CommonName: authorityName(opt.Host)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife - backdate),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// Clients that know the rule take its leaves for TLS servers alone.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(opt.PermitDNS) == 0 {
		if len(opt.PermitIP) > 0 {
			return nil, errors.New("addresses are permitted without a domain: name a domain, too")
		}
		return t, nil
	}
	t.PermittedDNSDomainsCritical = true
	for _, domain := range opt.PermitDNS {
		if !validDomain(domain) {
			return nil, fmt.Errorf("%q is no domain that can be permitted", domain)
		}
		t.PermittedDNSDomains = append(t.PermittedDNSDomains, strings.ToLower(domain))
	}
	for _, p := range opt.PermitIP {
		p = p.Masked()
		t.PermittedIPRanges = append(t.PermittedIPRanges, &net.IPNet{
			IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		})
	}
	if len(opt.PermitIP) == 0 {
		// A constraint binds names of its own kind only (RFC 5280 §4.2.1.10).
		t.ExcludedIPRanges = []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		}
	}
	return t, nil
}

// authorityName is the common name, within the 64 characters it may have.
func authorityName(host string) string {
	name := "egressd on " + host
	if host == "" {
		name = "egressd"
	}
	return name[:min(len(name), 64)]
}

// validDomain reports whether s is a host name of letters, digits and hyphens.
func validDomain(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
				return false
			}
		}
	}
	_, err := netip.ParseAddr(s)
	return err != nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// writeNew writes a file that must not be there, whole or not at all.
func writeNew(path string, mode fs.FileMode, block *pem.Block) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s", ErrAuthorityExists, path)
	}
	if err != nil {
		return fmt.Errorf("write the authority: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(path)
		}
	}()
	// The umask may have taken bits that are meant.
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("set the mode of %s: %w", path, err)
	}
	data := pem.EncodeToMemory(block)
	defer clear(data)
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("write the authority: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// OpenAuthority reads the authority in the folder dir. It refuses a key that
// others than its owner can read, or that belongs to somebody else than root or
// this process: ErrKeyExposed. now is nil for time.Now.
func OpenAuthority(dir string, now func() time.Time) (*Authority, error) {
	if now == nil {
		now = time.Now
	}
	cert, err := ReadCertificate(dir)
	if err != nil {
		return nil, err
	}
	data, err := readKey(filepath.Join(dir, KeyFile))
	if err != nil {
		return nil, err
	}
	defer clear(data)
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s holds no private key in PEM", filepath.Join(dir, KeyFile))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The parser's words could quote what it read.
		return nil, fmt.Errorf("%s holds no private key in PKCS #8", filepath.Join(dir, KeyFile))
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s", KeyFile, filepath.Join(dir, CertFile))
	}
	if t := now(); t.After(cert.NotAfter) {
		return nil, fmt.Errorf("the certificate authority in %s ended on %s: make a new one", dir, cert.NotAfter.Format(time.DateOnly))
	}
	return newAuthority(cert, key, now), nil
}

// ReadCertificate reads the certificate of the authority in the folder dir;
// the key need not be readable.
func ReadCertificate(dir string) (*x509.Certificate, error) {
	path := filepath.Join(dir, CertFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoAuthority, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s holds not one certificate in PEM", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("%s is not the certificate of an authority", path)
	}
	return cert, nil
}

// readKey reads the file of a key after a look at who else can.
func readKey(path string) (_ []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrNoAuthority, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: %s is no file", ErrKeyExposed, path)
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("%w: %s has mode %04o; chmod 600 it, or make a new authority if others had access", ErrKeyExposed, path, st.Mode&0o777)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%w: %s belongs to uid %d", ErrKeyExposed, path, st.Uid)
	case st.Size > maxPEM:
		return nil, fmt.Errorf("%s is no key: it has %d bytes", path, st.Size)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPEM))
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	return data, nil
}

// Certificate is the authority's own; it must not be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Fingerprint is the SHA-256 of a certificate, as people compare it.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// Permits reports whether the authority may sign for name, a host name or an
// address.
func (a *Authority) Permits(name string) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		return permitsIP(a.cert, addr.Unmap())
	}
	if len(a.cert.PermittedDNSDomains) == 0 {
		return true
	}
	name = strings.ToLower(name)
	for _, domain := range a.cert.PermittedDNSDomains {
		if name == domain || strings.HasSuffix(name, "."+domain) {
			return true
		}
	}
	return false
}

func permitsIP(cert *x509.Certificate, addr netip.Addr) bool {
	ip := net.IP(addr.AsSlice())
	for _, n := range cert.ExcludedIPRanges {
		if n.Contains(ip) {
			return false
		}
	}
	if len(cert.PermittedIPRanges) == 0 {
		return true
	}
	for _, n := range cert.PermittedIPRanges {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
