// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"crypto/tls"
	"errors"
	"testing"
)

// What crypto/tls sends is read in both directions, whatever was negotiated.
func TestConnections(t *testing.T) {
	ec, rsa := mustCertificate(t, false), mustCertificate(t, true)
	base := func(config *tls.Config) *tls.Config {
		if config.Certificates == nil {
			config.Certificates = []tls.Certificate{ec}
		}
		return config
	}
	suite := func(id uint16, cert tls.Certificate) *tls.Config {
		return base(&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{id}, Certificates: []tls.Certificate{cert}})
	}
	rsaKeyExchange := &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
	}}
	for _, tt := range []struct {
		name           string
		client, server *tls.Config
		suite          uint16 // 0: whatever comes
		retried        bool
	}{
		{"1.3", &tls.Config{}, base(&tls.Config{}), 0, false},
		{"1.3 retried", &tls.Config{}, base(&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}), 0, true},
		{"1.3 client certificate", &tls.Config{Certificates: []tls.Certificate{rsa}}, base(&tls.Config{ClientAuth: tls.RequireAnyClientCert}), 0, false},
		{"1.3 without tickets", &tls.Config{}, base(&tls.Config{SessionTicketsDisabled: true}), 0, false},
		{"1.3 small records", &tls.Config{DynamicRecordSizingDisabled: true}, base(&tls.Config{}), 0, false},
		{"1.2 client certificate", &tls.Config{Certificates: []tls.Certificate{rsa}}, base(&tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}), 0, false},
		{"1.2 ECDHE ECDSA AES 128", &tls.Config{}, suite(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, ec), 0xc02b, false},
		{"1.2 ECDHE ECDSA AES 256", &tls.Config{}, suite(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, ec), 0xc02c, false},
		{"1.2 ECDHE ECDSA ChaCha20", &tls.Config{}, suite(tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, ec), 0xcca9, false},
		{"1.2 ECDHE RSA AES 128", &tls.Config{}, suite(tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, rsa), 0xc02f, false},
		{"1.2 ECDHE RSA AES 256", &tls.Config{}, suite(tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, rsa), 0xc030, false},
		{"1.2 ECDHE RSA ChaCha20", &tls.Config{}, suite(tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, rsa), 0xcca8, false},
		{"1.2 RSA AES 128", rsaKeyExchange, suite(tls.TLS_RSA_WITH_AES_128_GCM_SHA256, rsa), 0x009c, false},
		{"1.2 RSA AES 256", rsaKeyExchange, suite(tls.TLS_RSA_WITH_AES_256_GCM_SHA384, rsa), 0x009d, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			var master []byte
			for _, resumed := range []bool{false, true} {
				c, sent, state := talk(t, tt.client, tt.server, someMessages(t))
				if resumed && state.Version == tls.VersionTLS12 {
					c.master = master // crypto/tls logs it only once
				}
				if want := resumed && !tt.server.SessionTicketsDisabled; state.DidResume != want {
					t.Fatalf("connection resumed: %v, want %v", state.DidResume, want)
				}
				p, s := c.mustParams(t)
				master = s.Master
				if p.Version != state.Version || p.Suite != state.CipherSuite || tt.suite != 0 && p.Suite != tt.suite || p.Retried != tt.retried {
					t.Errorf("ServerHello = %#04x, %#04x, retried %v", p.Version, p.Suite, p.Retried)
				}
				c.check(t, sent)
			}
		})
	}
}

// A suite that is not read is refused by name, not misread.
func TestUnsupported(t *testing.T) {
	cert := mustCertificate(t, true)
	for _, config := range []*tls.Config{
		{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}},
		{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
	} {
		config.Certificates = []tls.Certificate{cert}
		c, _, _ := talk(t, config, config, [][]byte{[]byte("hello")})
		p, s := c.mustParams(t)
		for _, side := range []Side{Client, Server} {
			if r, err := NewReader(side, p, s); r != nil || !errors.Is(err, ErrUnsupported) {
				t.Errorf("NewReader of %#04x, %#04x: %v", p.Version, p.Suite, err)
			}
		}
	}
}
