// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/egressd/egressd/policy/redisurl"
)

// quiet takes what the client library would write to stderr: what matters of
// it comes as an error of a call.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var silence = sync.OnceFunc(func() { redis.SetLogger(quiet{}) })

// tlsConfig reads the files that the URL names.
func tlsConfig(u redisurl.URL) (*tls.Config, error) {
	if !u.TLS {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.ServerName}
	if c.ServerName == "" && u.Mode == redisurl.Single {
		host, _, err := net.SplitHostPort(u.Addrs[0])
		if err != nil {
			return nil, fmt.Errorf("fleet store: %w", err)
		}
		c.ServerName = host
	}
	if u.CA != "" {
		pem, err := os.ReadFile(u.CA)
		if err != nil {
			return nil, fmt.Errorf("fleet store: read ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("fleet store: read ca: no certificate in %s", u.CA)
		}
	}
	if u.Cert != "" {
		pair, err := tls.LoadX509KeyPair(u.Cert, u.Key)
		if err != nil {
			return nil, fmt.Errorf("fleet store: read cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// dial makes a client that connects when it is used. The library's own
// repetitions are off, since it does not know which calls may be repeated;
// onConnect is called with each connection.
//
// Within a cluster it follows redirections, which come instead of an answer,
// and it may repeat a call after a broken connection: see the identity of calls.
func dial(u redisurl.URL, timeout time.Duration, onConnect func(context.Context, *redis.Conn) error) (redis.UniversalClient, error) {
	silence()
	config, err := tlsConfig(u)
	if err != nil {
		return nil, err
	}
	if u.Mode == 0 {
		return nil, errors.New("fleet store: no URL")
	}
	l := u.Login()
	var (
		pool    = 4 * max(runtime.GOMAXPROCS(0), 2)
		idle    = 5 * time.Minute
		never   = -1 // of repetitions
		one     = 1
		buffer  = 4096
		notices = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	)
	switch u.Mode {
	case redisurl.Single, redisurl.Socket:
		network := "tcp"
		if u.Mode == redisurl.Socket {
			network = "unix"
		}
		return redis.NewClient(&redis.Options{
			Network: network, Addr: u.Addrs[0], DB: u.DB, Username: l.User, Password: l.Password, TLSConfig: config,
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: notices, OnConnect: onConnect,
			MaxRetries: never, DialerRetries: one, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
			ContextTimeoutEnabled: true, PoolTimeout: timeout, PoolSize: pool, ConnMaxIdleTime: idle,
			ReadBufferSize: buffer, WriteBufferSize: buffer,
		}), nil
	case redisurl.Sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: u.Master, SentinelAddrs: u.Addrs, DB: u.DB, Username: l.User, Password: l.Password, TLSConfig: config,
			SentinelUsername: l.SentinelUser, SentinelPassword: l.SentinelPassword,
			Protocol: 2, DisableIdentity: true, OnConnect: onConnect,
			MaxRetries: never, DialerRetries: one, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
			ContextTimeoutEnabled: true, PoolTimeout: timeout, PoolSize: pool, ConnMaxIdleTime: idle,
			ReadBufferSize: buffer, WriteBufferSize: buffer,
		}), nil
	case redisurl.Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: u.Addrs, Username: l.User, Password: l.Password, TLSConfig: config,
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: notices, OnConnect: onConnect,
			MaxRetries: never, MaxRedirects: 3, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 8 * time.Millisecond,
			DialerRetries: one, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
			ContextTimeoutEnabled: true, PoolTimeout: timeout, PoolSize: pool, ConnMaxIdleTime: idle,
			ReadBufferSize: buffer, WriteBufferSize: buffer,
		}), nil
	}
	return nil, fmt.Errorf("fleet store: mode %d", u.Mode)
}
