// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// bulkHost is the name in the TLS requests. Clients resolve it themselves.
const bulkHost = "bulk.test"

// observedHost is the name in those that egressd reads with the client's keys.
const observedHost = "observed.test"

// lab is everything that one run starts and makes: servers, files, a cgroup.
type lab struct {
	dir    string // of configurations, the certificate and the file to download
	origin string // host:port of the plain origin
	tls    string // host:port of the TLS origin
	// paced is the plain origin's second address, and counted one where nobody
	// listens yet. Budgets of connections hold for both.
	paced, counted string
	// outside is a cgroup out of the scope of any daemon, empty one where a
	// program runs at connect() that only returns, and plain a daemon whose policy
	// names no hosts. There are none without egressd.
	outside, empty *os.File
	plain          *subject

	undo []func() error // in the order of their making
}

// subject is one way from the client to the origin.
type subject struct {
	name string
	http string // host:port to ask over HTTP
	tls  string // host:port to ask over TLS; "" if it does not take part there
	proc *server
	// cgroup is where the client runs, nil for that of this process.
	cgroup *os.File
	// metrics is where egressd counts its requests; "" for the others.
	metrics string
	// keys is the pipe that a client can log its TLS keys to, "" if there is none.
	// If observed, it does, and downloads from observedHost.
	keys     string
	observed bool
}

// newLab makes the files and starts the origins.
func newLab(ctx context.Context, bulkMiB int) (l *lab, err error) {
	dir, err := os.MkdirTemp("", "egressd-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the servers: %w", err)
	}
	l = &lab{dir: dir}
	l.onClose(func() error { return os.RemoveAll(dir) })
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	// Workers of nginx drop their privileges and must still read here.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("opening the folder of the servers: %w", err)
	}
	if err := writeCertificate(l.path("cert.pem"), l.path("key.pem")); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.path("www"), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the download: %w", err)
	}
	// A sparse file: no disk takes part.
	file := l.path("www/bulk")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return nil, fmt.Errorf("making the download: %w", err)
	}
	if err := os.Truncate(file, int64(bulkMiB)<<20); err != nil {
		return nil, fmt.Errorf("making the download: %w", err)
	}
	for _, addr := range []*string{&l.origin, &l.tls, &l.paced, &l.counted} {
		if *addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	return l, l.startOrigin(ctx)
}

// subjects starts the proxies, egressd unless its binary is "". The first
// subject is the origin directly.
func (l *lab) subjects(ctx context.Context, egressd string) ([]*subject, error) {
	subjects := []*subject{{name: "origin directly", http: l.origin, tls: l.tls}}
	starts := []func(context.Context) (*subject, error){l.startNginx, l.startHAProxy, l.startGoProxy}
	if egressd != "" {
		if err := l.startPlain(ctx, egressd); err != nil {
			return nil, err
		}
		starts = append(starts, func(ctx context.Context) (*subject, error) { return l.startEgressd(ctx, egressd) })
	}
	for _, start := range starts {
		s, err := start(ctx)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) onClose(f func() error) { l.undo = append(l.undo, f) }

// close stops the servers and removes what was made, the last first. A second
// close does nothing.
func (l *lab) close() error {
	undo := l.undo
	l.undo = nil
	var errs []error
	for i := len(undo) - 1; i >= 0; i-- {
		errs = append(errs, undo[i]())
	}
	return errors.Join(errs...)
}

// server is a running process with its children.
type server struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  string        // file with what it printed
}

// start runs a server until the lab is closed. What it prints goes to a file
// that errors quote. A zero env is that of this process.
func (l *lab) start(name string, env []string, command string, args ...string) (*server, error) {
	out, err := os.Create(l.path(name + ".log"))
	if err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command(command, args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	s := &server{cmd: cmd, done: make(chan struct{}), log: out.Name()}
	go func() {
		_ = cmd.Wait() // an early end is found by whoever waits for the port
		close(s.done)
	}()
	l.onClose(s.stop)
	return s, nil
}

// stop asks the server to end, and ends it if it does not.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(unix.SIGTERM) // fails if it has ended
	select {
	case <-s.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
		return fmt.Errorf("%s did not stop within 10 s", s.cmd.Path)
	}
}

// ended returns an error with the last words of a server that has ended.
func (s *server) ended() error {
	select {
	case <-s.done:
		said, _ := os.ReadFile(s.log)
		return fmt.Errorf("%s has ended: %s", s.cmd.Path, lastBytes(said, 2000))
	default:
		return nil
	}
}

// waitPort waits until the server takes connections.
func (s *server) waitPort(ctx context.Context, addr string) error {
	return s.wait(ctx, "a connection to "+addr, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// wait polls until ready, at most ten seconds.
func (s *server) wait(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for !ready() {
		if err := s.ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(s.log)
			return fmt.Errorf("waiting for %s: %w: %s", what, ctx.Err(), lastBytes(said, 2000))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func lastBytes(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// freeAddr finds an address of loopback with a free port.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// portOf returns the port of an address that freeAddr gave.
func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n
}

// writeCertificate makes a self-signed certificate for bulkHost.
func writeCertificate(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{bulkHost},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key: %w", err)
	}
	return errors.Join(
		writeFile(certFile, func(w io.Writer) error { return pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: cert}) }),
		writeFile(keyFile, func(w io.Writer) error { return pem.Encode(w, &pem.Block{Type: "PRIVATE KEY", Bytes: der}) }),
	)
}

// writeFile makes a file with what write puts into it.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
