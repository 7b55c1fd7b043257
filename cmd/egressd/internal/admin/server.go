// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"
)

// maxBody bounds what a caller may send.
const maxBody = 64 << 10

// peerKey carries a connection's *peer in the context of its requests.
type peerKey struct{}

// peer is who is at the other end.
type peer struct {
	uid uint32
	err error
}

// Serve answers on ln until ctx ends. Streams of events end with it.
func Serve(ctx context.Context, ln net.Listener, backend Backend, log *slog.Logger) error {
	server := &http.Server{
		Handler:           authorized(newHandler(backend, log), []uint32{0, uint32(os.Geteuid())}),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       identify,
	}
	stop := context.AfterFunc(ctx, func() {
		// Answers are small and streams follow ctx: nothing needs long.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(grace)
	})
	defer stop()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin socket: %w", err)
	}
	return nil
}

// identify notes who connected.
func identify(ctx context.Context, conn net.Conn) context.Context {
	uid, err := peerUID(conn)
	return context.WithValue(ctx, peerKey{}, &peer{uid, err})
}

// authorized hears only the users in allowed.
func authorized(next http.Handler, allowed []uint32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(*peer)
		switch {
		case !ok:
			fail(w, http.StatusForbidden, errors.New("who asks is not known"))
		case p.err != nil:
			fail(w, http.StatusForbidden, p.err)
		case !slices.Contains(allowed, p.uid):
			fail(w, http.StatusForbidden, fmt.Errorf("user %d may not control this daemon", p.uid))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func newHandler(b Backend, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, b.Status()) })
	mux.HandleFunc("GET /v1/lanes", func(w http.ResponseWriter, _ *http.Request) { answer(w, list(b.Lanes())) })
	mux.HandleFunc("GET /v1/flows", func(w http.ResponseWriter, _ *http.Request) { answer(w, list(b.Flows())) })
	mux.HandleFunc("GET /v1/exits", func(w http.ResponseWriter, r *http.Request) {
		since := time.Duration(0)
		if text := r.URL.Query().Get("since"); text != "" {
			var err error
			if since, err = ParseSince(text); err != nil {
				fail(w, http.StatusBadRequest, err)
				return
			}
		}
		answer(w, b.Exits(since))
	})
	mux.HandleFunc("GET /v1/counts", func(w http.ResponseWriter, _ *http.Request) { answer(w, b.Counts()) })
	mux.HandleFunc("GET /v1/explain", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		e, err := b.Explain(r.Context(), Question{URL: query.Get("url"), Method: query.Get("method"), Exit: query.Get("exit")})
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		answer(w, e)
	})
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) { events(w, r, b) })
	mux.HandleFunc("POST /v1/cooldown", func(w http.ResponseWriter, r *http.Request) {
		lane, d, err := decodeCooldown(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = b.Cooldown(lane, d)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		if d == 0 {
			log.Info("lane opened by hand", "lane", lane)
		} else {
			log.Info("lane closed by hand", "lane", lane, "for", d)
		}
		answer(w, struct{}{})
	})
	return mux
}

// list is all, and an empty list rather than null.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func events(w http.ResponseWriter, r *http.Request, b Backend) {
	query := r.URL.Query()
	follow, dispatches := query.Has("follow"), query.Has("dispatches")
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	// The head goes out now: who follows wants to know that it works.
	if err := flush.Flush(); err != nil {
		return
	}
	enc := json.NewEncoder(w)
	// An error is that of the caller's connection, and the caller has it.
	_ = b.Events(r.Context(), follow, dispatches, func(e Event) error {
		if err := enc.Encode(e); err != nil {
			return err
		}
		if follow {
			return flush.Flush()
		}
		return nil
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// The only error is that of the caller's connection.
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure{err.Error()})
}
