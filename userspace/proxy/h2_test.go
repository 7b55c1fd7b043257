// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 golang.org/x/net/http2 serves and speaks HTTP/2 on connections that a test made itself, and has settings that net/http has not.

package proxy

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"

	"github.com/egressd/egressd/policy"
)

// each2 runs f with origins and clients of HTTP/2 without TLS and inside TLS
// that ends here.
func each2(t *testing.T, f func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string))) {
	t.Run("clear", func(t *testing.T) {
		f(t, func(h http.HandlerFunc, budgets ...*policy.Budget) (*bench, *http.Client, string) {
			dest := h2Origin(t, nil, h)
			b := start(t, budgets...)
			return b, h2Client(t, b, dest), "http://example.com"
		})
	})
	t.Run("TLS", func(t *testing.T) {
		f(t, func(h http.HandlerFunc, budgets ...*policy.Budget) (*bench, *http.Client, string) {
			e := newEnder(t, true, h)
			b := e.ending(t, budgets...)
			return b, e.client(b, true), "https://example.com"
		})
	})
}

// Requests one after the other and side by side are all answered, and each takes a
// unit where it matches.
func TestH2Counts(t *testing.T) {
	each2(t, func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string)) {
		api := budget("example.com", plenty)
		api.Name, api.Match.Path, api.Match.Methods = "api", "/api/", []string{"POST"}
		all := budget("example.com", plenty)
		all.Name, all.Per = "all", policy.PerExit
		b, client, base := serve(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("%s at the origin", r.Proto)
			}
			echoBody(w, r)
		}, api, all)
		for i := range 20 {
			text := strings.Repeat("x", i*9000)
			resp, err := client.Post(base+"/api/?secret", "text/plain", strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != text {
				t.Fatalf("request %d: %d bytes of %d, %v", i, len(body), len(text), err)
			}
			resp.Body.Close()
		}
		var g errgroup.Group
		for i := range 200 {
			g.Go(func() error {
				resp, err := client.Get(fmt.Sprint(base, "/img/", i))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := laneOf(t, b, "api").Cell.Granted.Load(); got != 20 {
			t.Errorf("%d units of the budget for POST /api/, want 20", got)
		}
		lane := laneOf(t, b, "all")
		if got := lane.Cell.Granted.Load(); got != 220 {
			t.Errorf("%d units of the budget for all, want 220", got)
		}
		waitFor(t, "all answers to be read", func() bool { return lane.InFlight.Load() == 0 })
		want := uint64(0)
		if strings.HasPrefix(base, "https") {
			want = 220
		}
		n := b.Insight().Counts()
		if got := n.Answers[policy.SightTerminate]; got != want {
			t.Errorf("%d answers counted inside TLS, want %d", got, want)
		}
		for d, count := range n.Doubts {
			if count > 0 {
				t.Errorf("%d connections in doubt: %v", count, d)
			}
		}
		client.CloseIdleConnections()
		waitFor(t, "the connections to end", func() bool { return b.conns.Load() == 0 })
	})
}

// What reaches the origin of one connection is paced; when each was let go is for the
// tests of the gate.
func TestH2Paces(t *testing.T) {
	each2(t, func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string)) {
		var mu sync.Mutex
		var at []time.Time
		b, client, base := serve(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			at = append(at, time.Now())
			mu.Unlock()
		}, budget("example.com", perSecond(20)))
		var g errgroup.Group
		for range 12 {
			g.Go(func() error {
				resp, err := client.Get(base + "/")
				if err == nil {
					resp.Body.Close()
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := at[len(at)-1].Sub(at[0]); len(at) != 12 || got < 350*time.Millisecond {
			t.Errorf("%d requests at 20/s within %v", len(at), got)
		}
		if got := laneOf(t, b, "test").Cell.Granted.Load(); got != 12 {
			t.Errorf("%d units for 12 requests", got)
		}
	})
}

// A 429 on one stream closes the lane for all.
func TestH2Verdict(t *testing.T) {
	each2(t, func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string)) {
		var mu sync.Mutex
		var at []time.Time
		b, client, base := serve(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}, budget("example.com", plenty))
		if got := get(t, client, base+"/"); got != 429 {
			t.Fatalf("status %d", got)
		}
		if got := get(t, client, base+"/"); got != 200 {
			t.Errorf("status %d after the cooldown", got)
		}
		if d := at[1].Sub(at[0]); d < time.Second-20*time.Millisecond {
			t.Errorf("a request %v after a 429 that asked for 1s", d)
		}
		if got := laneOf(t, b, "test").Cell.Limited.Load(); got != 1 {
			t.Errorf("%d limits noted, want 1", got)
		}
	})
}

// Refused requests are answered here, with and without a body; those before,
// between and after them arrive as they are, whatever became of the header table.
func TestH2Refuses(t *testing.T) {
	each2(t, func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string)) {
		rule := budget("example.com", policy.Rate{Count: 2, Every: time.Hour})
		rule.Burst, rule.Match.Path = 2, "/scarce"
		b, client, base := serve(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Saw", r.Header.Get("X-Number")+r.Header.Get("X-Same")+r.Header.Get("X-Secret"))
			_, _ = io.Copy(w, r.Body)
		}, rule)
		ask := func(i int, path string, body []byte) *http.Response {
			r, err := http.NewRequest("POST", base+path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Number", fmt.Sprint(i/3))
			r.Header.Set("X-Same", strings.Repeat("s", 100))
			r.Header.Set("X-Secret", "not indexed "+fmt.Sprint(i))
			resp, err := client.Do(r)
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			return resp
		}
		body := make([]byte, 100<<10)
		refused := 0
		for i := range 60 {
			path, want := "/free", 200
			if i%3 == 1 {
				if path = "/scarce"; i > 6 {
					want = 429
				}
			}
			resp := ask(i, path, body[:i*1000])
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Fatalf("request %d for %s: status %d, want %d", i, path, resp.StatusCode, want)
			}
			if want == 429 {
				refused++
				if !strings.HasPrefix(resp.Header.Get("Proxy-Status"), "egressd") || resp.Header.Get("Retry-After") == "" {
					t.Errorf("a refusal has %v", resp.Header)
				}
				continue
			}
			if err != nil || len(got) != i*1000 {
				t.Errorf("request %d: %d bytes back, %v", i, len(got), err)
			}
			if saw, want := resp.Header.Get("X-Saw"), fmt.Sprint(i/3)+strings.Repeat("s", 100)+"not indexed "+fmt.Sprint(i); saw != want {
				t.Errorf("request %d: the origin saw %q, want %q", i, saw, want)
			}
		}
		if refused != 18 {
			t.Errorf("%d refused, want 18", refused)
		}
		if got := b.conns.Load(); got != 1 {
			t.Errorf("%d connections, want 1", got)
		}
	})
}

// Bodies of refused requests give their room back: else the window of the
// connection would be used up by the tenth.
func TestH2RefusedBodies(t *testing.T) {
	conf := &http2.Server{MaxUploadBufferPerConnection: 65535, MaxUploadBufferPerStream: 65535}
	dest := h2Origin(t, conf, func(w http.ResponseWriter, r *http.Request) { echoBody(w, r) })
	rule := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	rule.Match.Path = "/scarce"
	b := start(t, rule)
	client := h2Client(t, b, dest)
	body := make([]byte, 200<<10)
	for i := range 20 {
		resp, err := client.Post("http://origin.test/scarce", "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if want := map[bool]int{true: 200, false: 429}[i == 0]; resp.StatusCode != want {
			t.Fatalf("request %d: status %d, want %d", i, resp.StatusCode, want)
		}
	}
	resp, err := client.Post("http://origin.test/free", "text/plain", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes back of %d, %v", len(got), len(body), err)
	}
	if got := b.conns.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// Many uploads at once on a connection with a small window, of which only one may
// be under way: those that wait must not take the room that it needs.
func TestH2HeldBodyDoesNotBlock(t *testing.T) {
	conf := &http2.Server{MaxUploadBufferPerConnection: 65535, MaxUploadBufferPerStream: 65535}
	most, now := 0, 0
	var mu sync.Mutex
	dest := h2Origin(t, conf, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		now--
		mu.Unlock()
		fmt.Fprint(w, len(body))
	})
	rule := budget("origin.test", plenty)
	rule.Concurrency = 1
	b := start(t, rule)
	client := h2Client(t, b, dest)
	var g errgroup.Group
	for range 24 { // each has a window of its own: more waits than usual
		g.Go(func() error {
			body := make([]byte, 300<<10)
			_, _ = rand.Read(body)
			resp, err := client.Post("http://origin.test/", "text/plain", bytes.NewReader(body))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != fmt.Sprint(len(body)) {
				return fmt.Errorf("status %d, the origin got %s bytes of %d, %v", resp.StatusCode, got, len(body), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if most != 1 {
		t.Errorf("%d requests at once at the origin, want 1", most)
	}
	if got := b.conns.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	if got := b.kept.Load(); got != 0 {
		t.Errorf("%d bytes are counted as kept in the end", got)
	}
}

// Big bodies in both directions at once.
func TestH2Bulk(t *testing.T) {
	each2(t, func(t *testing.T, serve func(http.HandlerFunc, ...*policy.Budget) (*bench, *http.Client, string)) {
		_, client, base := serve(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(w, r.Body)
		}, budget("example.com", plenty))
		var g errgroup.Group
		for range 4 {
			g.Go(func() error {
				body := make([]byte, 8<<20)
				_, _ = rand.Read(body)
				resp, err := client.Post(base+"/", "text/plain", bytes.NewReader(body))
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if err != nil || !bytes.Equal(got, body) {
					return fmt.Errorf("%d bytes back of %d, %v", len(got), len(body), err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	})
}
