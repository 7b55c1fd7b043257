// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// The stampede of the picture. The origin closes for all of its clients when one
// is over the limit, and tells them when to come back: so they all come back
// then.
const (
	// PictureSpan is how long each of the runs takes, if nobody says otherwise.
	PictureSpan = 25 * time.Second

	picturePause = time.Second // of a worker, between two requests that were served
	pictureRate  = 10          // requests in a second that the origin allows, and at once
	pictureRetry = 3 * time.Second
)

// Picture is the same stampede twice: only measured, and held.
type Picture struct {
	Workers  int     `json:"workers"`
	Allowed  float64 `json:"allowed_per_second"`
	RetryFor int     `json:"retry_after_s"`
	Measured Run     `json:"measured"` // nobody holds anything: as if egressd were not there
	Held     Run     `json:"held"`
}

// Run is one of the two.
type Run struct {
	Requests       int      `json:"requests"`
	Limited        int      `json:"limited"`
	MaxInAnySecond int      `json:"max_in_any_second"`
	Seconds        []Second `json:"seconds"` // by the origin's own record, from the first request on
	// By Prometheus, from the start of the workers on; nil where there is none.
	Rate         []Sample `json:"prometheus_rate,omitempty"`
	Distribution []Bucket `json:"prometheus_distribution,omitempty"`
}

// Second is what came to the origin in one.
type Second struct {
	Served  int `json:"served"`
	Limited int `json:"limited"`
}

// Sample is a value at a time after the start of the workers.
type Sample struct {
	At    float64 `json:"at_s"`
	Value float64 `json:"value"`
}

// Bucket is the seconds in which as many requests went by an exit, at most Most
// and more than the bucket before has. Most is "+Inf" in the last one.
type Bucket struct {
	Most    string  `json:"most"`
	Seconds float64 `json:"seconds"`
}

// Picture plays the stampede twice. When it returns, also because ctx ended,
// nothing that it started is left.
func (d *Demo) Picture(ctx context.Context) (*Picture, error) {
	if d.Span == 0 {
		d.Span = PictureSpan
	}
	p := Picture{
		Workers: stampedeProcesses * stampedeClients, Allowed: pictureRate, RetryFor: int(pictureRetry / time.Second),
	}
	var err error
	d.say("%d workers against an origin that allows %d requests per second: %v, only measured", p.Workers, pictureRate, d.Span)
	if p.Measured, err = d.picture(ctx, false); err != nil {
		return nil, err
	}
	d.say("the same workers, unchanged, held by egressd: %v", d.Span)
	if p.Held, err = d.picture(ctx, true); err != nil {
		return nil, err
	}
	return &p, nil
}

// picture is one of the runs.
func (d *Demo) picture(ctx context.Context, enforce bool) (r Run, err error) {
	origin, err := d.startOrigin(OriginConfig{
		Every: time.Second / pictureRate, Burst: pictureRate, RetryAfter: pictureRetry, Shut: true,
	})
	if err != nil {
		return r, err
	}
	defer origin.kill()
	metrics, err := freeAddress()
	if err != nil {
		return r, err
	}
	guard, err := d.Measured(ctx, fmt.Sprintf("%s:%d=%d/s", originHost, origin.port, pictureRate), enforce, metrics)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, guard.Close()) }()
	var p *prometheus
	if d.Prometheus != "" {
		if p, err = d.startPrometheus(ctx, metrics); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, p.stop()) }()
	}
	begin := time.Now()
	running, err := d.startWorkers(ctx, guard.Cgroup(), stampedeProcesses,
		d.clients(origin.port, stampedeClients, picturePause, 2*d.Span, "--heed"))
	if err != nil {
		return r, err
	}
	select {
	case <-ctx.Done():
		return r, errors.Join(ctx.Err(), running.stop())
	case <-time.After(d.Span + settle):
	}
	record, err := origin.report()
	if err := errors.Join(err, running.stop()); err != nil {
		return r, err
	}
	if len(record) == 0 {
		return r, errors.New("the origin received nothing from the workers")
	}
	r = record.Since(d.Span).run(d.Span)
	if p != nil {
		if r.Rate, err = p.rate(ctx, begin, d.Span); err != nil {
			return r, err
		}
		r.Distribution, err = p.distribution(ctx, begin.Add(d.Span))
	}
	return r, err
}

// settle is how long it takes until what happened has been scraped.
const settle = time.Second

// run counts a record second by second.
func (r Record) run(span time.Duration) Run {
	out := Run{Requests: len(r), Limited: r.Limited(), MaxInAnySecond: r.MaxInAnySecond(), Seconds: make([]Second, (span+time.Second-1)/time.Second)}
	for _, e := range r {
		s := &out.Seconds[min(int(e.At/time.Second), len(out.Seconds)-1)]
		if e.Status == http.StatusTooManyRequests {
			s.Limited++
		} else {
			s.Served++
		}
	}
	return out
}

// freeAddress is an address of the loopback that nobody listens at.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	if err := ln.Close(); err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
}
