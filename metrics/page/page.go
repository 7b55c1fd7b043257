// SPDX-License-Identifier: Apache-2.0

// Package page is the live page of a daemon: exits and lanes with what they send
// against their budgets, cooldowns as they count down, who waits, and what
// happened last. Nothing on it changes anything.
//
//	GET /                the page; what it consists of lies below /assets/
//	GET /api/v1/state    one State as JSON
//	GET /api/v1/stream   a State each second, as server-sent events
//
// Both take the parameters q (words that the names of a lane must contain), show
// (all, closed, waiting or slowed), sort (see orders), order (asc or desc), and
// lanes, exits and events: how many of each are wanted.
//
// A State is bounded, however many lanes there are: search, sort and choice
// happen here, and only the chosen rows are sent. Each State is complete. One
// that a slow reader missed is missing nowhere, so it is dropped; and since one
// replaces the other, numbers of two daemons never mix: State.Epoch tells them
// apart.
//
// Nobody is asked who they are: that is for the server in front (the same that
// guards /metrics). What a foreign web page could do in the browser of somebody
// who may see this one is prevented: see guard.
package page

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"
)

// Bounds of what readers can make the daemon do.
const (
	maxWatchers = 16                     // streams at once
	every       = time.Second            // between two states of a stream
	fresh       = 200 * time.Millisecond // so old may what was seen be for one who asks
	patience    = 10 * time.Second       // for a reader to take a state
)

// Config is what a Page needs.
type Config struct {
	Source Source
	// Hosts are names, besides localhost and addresses, under which the page may
	// be asked for.
	Hosts []string
}

// Page is the handler. Made by New; safe for concurrent use. Streams only move
// while Run runs.
type Page struct {
	source Source
	hosts  []string
	epoch  string
	mux    *http.ServeMux

	every, patience time.Duration

	seeing sync.Mutex // held while the source is read
	eyes   eyes
	last   *sight

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// New makes a page. It reads nothing until somebody looks.
func New(cfg Config) *Page {
	p := &Page{
		source: cfg.Source, hosts: cfg.Hosts, epoch: rand.Text(), mux: http.NewServeMux(),
		every: every, patience: patience, watchers: make(map[*watcher]struct{}),
	}
	for _, a := range assets {
		p.mux.Handle("GET "+a.path, a)
	}
	p.mux.HandleFunc("GET /api/v1/state", p.state)
	p.mux.HandleFunc("GET /api/v1/stream", p.stream)
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.guard(w, r) {
		p.mux.ServeHTTP(w, r)
	}
}

// Run keeps streams moving until ctx ends, and then ends them.
func (p *Page) Run(ctx context.Context) error {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	defer p.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if p.watched() {
				p.show(p.see(0))
			}
		}
	}
}

// see looks at the source, unless what was last seen is younger than age.
func (p *Page) see(age time.Duration) *sight {
	p.seeing.Lock()
	defer p.seeing.Unlock()
	if now := time.Now(); p.last == nil || now.Sub(p.last.at) >= age {
		p.last = p.eyes.see(p.source, now)
	}
	return p.last
}

// watcher is the reader of one stream.
type watcher struct {
	sights  chan *sight // the newest one that was not taken; closed at the end
	skipped uint64      // sights that were not taken in time; under Page.mu
}

// watch adds a reader; nil if there is no room.
func (p *Page) watch() *watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.watchers) >= maxWatchers {
		return nil
	}
	w := &watcher{sights: make(chan *sight, 1)}
	p.watchers[w] = struct{}{}
	return w
}

func (p *Page) unwatch(w *watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, w)
}

func (p *Page) watched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watchers) > 0
}

// show offers s to all readers. It waits for none: who has not taken the sight
// before gets this one instead.
func (p *Page) show(s *sight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.watchers {
		select {
		case <-w.sights:
			w.skipped++
		default:
		}
		w.sights <- s // there is room: nobody else sends
	}
}

// skippedBy is how many sights the reader has missed so far.
func (p *Page) skippedBy(w *watcher) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.skipped
}

func (p *Page) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for w := range p.watchers {
		close(w.sights)
		delete(p.watchers, w)
	}
}
