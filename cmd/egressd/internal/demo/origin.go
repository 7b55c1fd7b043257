// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OriginConfig is how the origin limits.
type OriginConfig struct {
	// Every is the time in which one request is allowed, and Burst how many may
	// come at once after a pause: a token bucket. Zero is no limit, and a burst of
	// one.
	Every time.Duration
	Burst int
	// LimitOnceAfter, unless zero, makes the origin answer one request with
	// 429, the first that comes so long after the very first.
	LimitOnceAfter time.Duration
	// RetryAfter goes with each 429.
	RetryAfter time.Duration
	// Shut makes the first request beyond the limit close the origin for
	// RetryAfter: whoever comes meanwhile is limited, too, and told what is left
	// of it.
	Shut bool
}

// origin is an HTTP server that limits and writes down what it gets.
type origin struct {
	cfg   OriginConfig
	start time.Time

	mu      sync.Mutex
	record  Record
	tokens  float64 // 0 to capacity
	last    time.Duration
	limited bool // the one 429 is out
	shut    time.Duration
}

// Serve runs an origin on a free port of the loopback, both families where
// there are two. It writes {"port":N} to out, serves until in ends, and then
// writes its Record.
func Serve(cfg OriginConfig, in io.Reader, out io.Writer) error {
	listeners, port, err := listen()
	if err != nil {
		return fmt.Errorf("listen on loopback: %w", err)
	}
	o := newOrigin(cfg, time.Now())
	server := &http.Server{Handler: o, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, len(listeners))
	for _, ln := range listeners {
		go func() { failed <- server.Serve(ln) }()
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(hello{Port: port}); err != nil {
		return errors.Join(err, server.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// However it ends, nobody wants the origin any more.
		_, _ = io.Copy(io.Discard, in)
	}()
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ended:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Join(server.Close(), enc.Encode(o.record))
}

// hello is the first thing that an origin says.
type hello struct {
	Port int `json:"port"`
}

// listen opens 127.0.0.1 and ::1 on one free port: a name like localhost means
// both, and clients try either first.
func listen() (listeners []net.Listener, port int, err error) {
	for range 10 {
		v4, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, 0, err
		}
		port := v4.Addr().(*net.TCPAddr).Port
		v6, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
		switch {
		case err == nil:
			return []net.Listener{v4, v6}, port, nil
		case !errors.Is(err, unix.EADDRINUSE):
			return []net.Listener{v4}, port, nil // no IPv6 here
		}
		_ = v4.Close() // somebody else has this port in the other family
	}
	return nil, 0, errors.New("found no port that is free in both families")
}

func newOrigin(cfg OriginConfig, start time.Time) *origin {
	o := &origin{cfg: cfg, start: start}
	o.tokens = o.capacity()
	return o
}

// capacity of the bucket: its burst, and the tolerance for jitter.
func (o *origin) capacity() float64 {
	burst := float64(max(o.cfg.Burst, 1))
	if o.cfg.Every == 0 {
		return burst
	}
	return burst + float64(Tolerance)/float64(o.cfg.Every)
}

func (o *origin) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	at := time.Since(o.start)
	switch status := o.receive(at); status {
	case http.StatusTooManyRequests:
		if d := o.delay(at); d > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
		}
		http.Error(w, "slow down", status)
	default:
		_, _ = io.WriteString(w, "hello\n")
	}
}

// receive decides the status for a request at that time after the start, and
// writes both down.
func (o *origin) receive(at time.Duration) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	status := http.StatusOK
	switch {
	case at < o.shut:
		status = http.StatusTooManyRequests
	case o.cfg.Every > 0 && !o.take(at):
		status = http.StatusTooManyRequests
		if o.cfg.Shut {
			o.shut = at + o.cfg.RetryAfter
		}
	}
	if after := o.cfg.LimitOnceAfter; after > 0 && !o.limited && len(o.record) > 0 && at-o.record[0].At >= after {
		o.limited = true
		status = http.StatusTooManyRequests
	}
	o.record = append(o.record, Receipt{at, status})
	return status
}

// delay is what a request that was limited at that time is told to wait.
func (o *origin) delay(at time.Duration) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cfg.Shut && at < o.shut {
		return o.shut - at
	}
	return o.cfg.RetryAfter
}

func (o *origin) take(at time.Duration) bool {
	// Requests on several connections may come here in another order than
	// they looked at the clock.
	at = max(at, o.last)
	o.tokens = min(o.capacity(), o.tokens+float64(at-o.last)/float64(o.cfg.Every))
	o.last = at
	if o.tokens < 1 {
		return false
	}
	o.tokens--
	return true
}
