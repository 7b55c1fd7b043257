// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Alerts that a client is sent for its origin's certificate (RFC 8446 §6).
const (
	alertBadCertificate     = 42
	alertCertificateExpired = 45
	alertCertificateUnknown = 46
	alertUnknownCA          = 48
)

// errOwnAuthority says that an origin showed a certificate of this host's own
// authority, which is for clients alone.
var errOwnAuthority = errors.New("signed by this host's own authority")

// verify checks an origin's certificates, its own first, for name.
func verify(chain []*x509.Certificate, name string, roots *x509.CertPool, own *x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("the origin sent no certificate")
	}
	opts := x509.VerifyOptions{
		DNSName:       name,
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	found, err := chain[0].Verify(opts)
	if err != nil {
		return fmt.Errorf("verify the origin's certificate for %s: %w", name, err)
	}
	// The store of the system may hold our own authority.
	for _, path := range found {
		if !path[len(path)-1].Equal(own) {
			return nil
		}
	}
	return fmt.Errorf("verify the origin's certificate for %s: %w", name, errOwnAuthority)
}

// alertFor is the alert that tells best what is wrong with a certificate.
func alertFor(err error) byte {
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return alertCertificateExpired
	case errors.As(err, &authority), errors.Is(err, errOwnAuthority):
		return alertUnknownCA
	case errors.As(err, &host):
		return alertCertificateUnknown
	}
	return alertBadCertificate
}
