// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// scene is a source that tests arrange. The zero scene is an idle daemon.
type scene struct {
	mu     sync.Mutex
	status Status
	lanes  []Lane
	exits  []Exit
	until  time.Time
	events []Event
	looks  int
}

func (s *scene) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.status
}

func (s *scene) Lanes() []Lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Lane(nil), s.lanes...)
}

func (s *scene) Exits(int) ([]Exit, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Exit(nil), s.exits...), s.until
}

func (s *scene) Events(n int) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Event(nil), s.events[max(0, len(s.events)-n):]...)
}

func (s *scene) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// busy is a daemon with two exits, three lanes and an event.
func busy() *scene {
	lane := func(budget, host, exit string) Lane {
		return Lane{
			ID: budget + "/" + host + "/" + exit, Budget: budget, Destination: host, Exit: exit, CountedBy: exit,
			Per: policy.PerDestination | policy.PerExit, Mode: "enforce", Rate: 2, Base: 2, Burst: 1,
		}
	}
	closed := lane("shop", "shop.example", "E-2")
	closed.ClosedFor, closed.Reason, closed.Waiting, closed.Limited, closed.Rate = 1500*time.Millisecond, "limited, 3s as asked", 4, 7, 1
	return &scene{
		status: Status{Version: "v1.2.3", Started: time.Unix(1000, 0).UTC(), Attached: true},
		lanes:  []Lane{lane("news", "news.example", "E-1"), lane("shop", "shop.example", "E-1"), closed},
		exits:  []Exit{{Name: "E-2", Seconds: []float64{1, 2}, TooMany: 7}, {Name: "E-1", Seconds: []float64{2, 2, 3}}},
		until:  time.Unix(2000, 250e6),
		events: []Event{{At: time.Unix(1999, 0).UTC(), Mono: 5, Kind: "penalty", Lane: "shop/shop.example/E-2", Wait: 3 * time.Second, Detail: "limited, 3s as asked"}},
	}
}

// serve serves a page of src, with Run, until the test ends.
func serve(t testing.TB, src Source, arrange func(*Page)) (*Page, *httptest.Server) {
	t.Helper()
	p := New(Config{Source: src, Hosts: []string{"metrics.example", "Worker-17"}})
	if arrange != nil {
		arrange(p)
	}
	server := httptest.NewUnstartedServer(p)
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
			// So that a reader who stands still is soon noticed.
			if err := tcp.SetWriteBuffer(16 << 10); err != nil {
				t.Error(err)
			}
		}
	}
	server.Start()
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
		server.Close()
	})
	return p, server
}

// get asks for a path and returns the answer and its body.
func get(t testing.TB, server *httptest.Server, path string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func mustState(t testing.TB, server *httptest.Server, query string) (s State) {
	t.Helper()
	resp, body := get(t, server, "/api/v1/state"+query)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("state%s: got %s %s\n%s", query, resp.Status, resp.Header.Get("Content-Type"), body)
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("state%s: %v in\n%s", query, err, body)
	}
	return s
}

func TestState(t *testing.T) {
	_, server := serve(t, busy(), nil)
	s := mustState(t, server, "")
	if s.Epoch == "" || s.Seq != 1 || s.Until != 2000.25 || s.Daemon != (Daemon{Version: "v1.2.3", Started: time.Unix(1000, 0).UTC(), Attached: true}) {
		t.Errorf("got %+v", s)
	}
	if want := (Totals{PerSecond: 1, Exits: 2, Lanes: 3, Closed: 1, Waiting: 4}); s.Totals != want {
		t.Errorf("got totals %+v, want %+v", s.Totals, want)
	}
	if len(s.Exits) != 2 || s.ExitsMatched != 2 {
		t.Fatalf("got exits %+v", s.Exits)
	}
	one, two := s.Exits[0], s.Exits[1]
	if one.Exit != "E-1" || one.Budget != 4 || one.Rate != 4 || one.Lanes != 2 || one.PerSecond != 0.7 || fmt.Sprint(one.Counts) != "[2 2 3]" {
		t.Errorf("got %+v, want what both lanes of E-1 may send", one)
	}
	if two.Exit != "E-2" || two.Budget != 2 || two.Rate != 1 || two.Closed != 1 || two.ClosedFor != 1.5 || two.TooMany != 7 || two.Waiting != 4 {
		t.Errorf("got %+v, want E-2 closed and slowed", two)
	}
	if len(s.Lanes) != 3 || s.LanesMatched != 3 {
		t.Fatalf("got lanes %+v", s.Lanes)
	}
	first := s.Lanes[0]
	if first.Lane != "shop/shop.example/E-2" || first.Open || first.ClosedFor != 1.5 || first.Reason != "limited, 3s as asked" || !first.Slowed || first.PerSecond != nil {
		t.Errorf("got %+v first, want the closed lane, of which no rate is known", first)
	}
	if len(s.Events) != 1 || s.Events[0].ID != 1 || s.Events[0].Kind != "penalty" || s.Events[0].Wait != 3 {
		t.Errorf("got events %+v", s.Events)
	}
}

// What asks soon after another gets what that one got: a loop of curl must not
// cost the daemon more than the page does.
func TestStateIsShared(t *testing.T) {
	src := busy()
	p := New(Config{Source: src})
	for range 20 {
		p.see(time.Hour)
	}
	if got := src.looked(); got != 1 {
		t.Errorf("got %d looks at the daemon, want 1", got)
	}
	s := p.see(time.Hour)
	q, err := parseQuery("")
	if err != nil {
		t.Fatal(err)
	}
	if a, b := p.write(s, q), p.write(s, q); &a[0] != &b[0] {
		t.Error("one State was written twice for the same query")
	}
}

func TestEmptyDaemon(t *testing.T) {
	_, server := serve(t, new(scene), nil)
	_, body := get(t, server, "/api/v1/state")
	for _, want := range []string{`"exits":[]`, `"lanes":[]`, `"events":[]`} {
		if !strings.Contains(body, want) {
			t.Errorf("got no %s in %s", want, body)
		}
	}
}

// No answer says anything without the headers, whatever was asked for.
func TestHeaders(t *testing.T) {
	_, server := serve(t, busy(), nil)
	paths := []string{"/", "/api/v1/state", "/api/v1/state?sort=none", "/nothing", "/api/v1/nothing"}
	for _, a := range assets {
		paths = append(paths, strings.TrimSuffix(a.path, "{$}"))
	}
	for _, path := range paths {
		resp, _ := get(t, server, path)
		for name, want := range map[string]string{
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"X-Frame-Options":              "DENY",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Access-Control-Allow-Origin":  "",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: got %s: %q, want %q", path, name, got, want)
			}
		}
		directives := map[string]string{}
		for _, d := range strings.Split(resp.Header.Get("Content-Security-Policy"), ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(d), " ")
			directives[name] = value
		}
		for name, want := range map[string]string{
			"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
			"frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'",
		} {
			if directives[name] != want {
				t.Errorf("%s: got policy %s %q, want %q", path, name, directives[name], want)
			}
		}
	}
}

func TestHosts(t *testing.T) {
	_, server := serve(t, busy(), nil)
	for host, want := range map[string]int{
		"127.0.0.1:9477":        200,
		"127.0.0.1":             200,
		"192.0.2.7:9477":        200,
		"[::1]:9477":            200,
		"[2001:db8::1]":         200,
		"localhost":             200,
		"LOCALHOST.:9477":       200,
		"a.localhost:9477":      200,
		"metrics.example:9477":  200,
		"worker-17":             200,
		"evil.example":          421,
		"evil.example:9477":     421,
		"metrics.example.evil":  421,
		"xmetrics.example":      421,
		"localhost.evil:9477":   421,
		"evillocalhost":         421,
		"127.0.0.1.evil:9477":   421,
		"127.0.0.1.nip.example": 421,
		"2130706433":            421, // no browser sends an address so
	} {
		for _, path := range []string{"/", "/api/v1/state", "/assets/app.js"} {
			resp, body := get(t, server, path, "Host", host)
			if resp.StatusCode != want {
				t.Errorf("%s for host %s: got %s, want %d", path, host, resp.Status, want)
			}
			if want == 421 && strings.Contains(body, "shop") {
				t.Errorf("%s for host %s: got %s", path, host, body)
			}
		}
	}
	if ownHost("", []string{""}) {
		t.Error("a request without a host is answered")
	}
	// A certificate says more than a name.
	r := httptest.NewRequest(http.MethodGet, "/api/v1/state", nil)
	r.Host, r.TLS = "some.example", new(tls.ConnectionState)
	w := httptest.NewRecorder()
	New(Config{Source: busy()}).ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("over TLS: got %d, want 200", w.Code)
	}
}

func TestOtherSites(t *testing.T) {
	_, server := serve(t, busy(), nil)
	for _, tt := range []struct {
		path, site string
		want       int
	}{
		{"/api/v1/state", "cross-site", 403},
		{"/api/v1/state", "same-site", 403}, // another port of this machine
		{"/api/v1/stream", "cross-site", 403},
		{"/api/v1/state", "same-origin", 200},
		{"/api/v1/state", "none", 200}, // typed into the browser
		{"/", "cross-site", 200},       // a link
	} {
		if resp, _ := get(t, server, tt.path, "Sec-Fetch-Site", tt.site); resp.StatusCode != tt.want {
			t.Errorf("%s from a page of site %s: got %s, want %d", tt.path, tt.site, resp.Status, tt.want)
		}
	}
}

func TestMethods(t *testing.T) {
	_, server := serve(t, busy(), nil)
	for _, path := range []string{"/", "/api/v1/state", "/api/v1/stream"} {
		resp, err := server.Client().Post(server.URL+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: got %s, want 405", path, resp.Status)
		}
	}
}

func TestAssets(t *testing.T) {
	_, server := serve(t, busy(), nil)
	for path, kind := range map[string]string{
		"/":                                "text/html; charset=utf-8",
		"/assets/app.js":                   "text/javascript; charset=utf-8",
		"/assets/page.css":                 "text/css; charset=utf-8",
		"/assets/icon.svg":                 "image/svg+xml",
		"/assets/uplot/uPlot.iife.min.js":  "text/javascript; charset=utf-8",
		"/assets/uplot/LICENSE":            "text/plain; charset=utf-8",
		"/assets/index.html":               "",
		"/assets/":                         "",
		"/assets/../page.go":               "",
		"/assets/uplot/..%2f..%2fpage.go":  "",
		"/assets/uplot/uPlot.min.css":      "text/css; charset=utf-8",
		"/assets/uplot/does-not-exist.css": "",
	} {
		resp, body := get(t, server, path)
		if kind == "" {
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s: got %s, want 404", path, resp.Status)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != kind || body == "" {
			t.Errorf("%s: got %s, %s, %d bytes, want %s", path, resp.Status, resp.Header.Get("Content-Type"), len(body), kind)
		}
		if again, _ := get(t, server, path, "If-None-Match", resp.Header.Get("Etag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: got %s, want 304", path, again.Status)
		}
	}
}

// The page brings all that it needs, and nothing of it needs more than the
// policy of its content allows.
func TestAssetsAreSelfContained(t *testing.T) {
	foreign := regexp.MustCompile(`["'(=](https?:)?//`)
	inline := regexp.MustCompile(`<script(>|[^>]*>[^<])|<style|\sstyle=|\son[a-z]+=|javascript:`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`)
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, "LICENSE") {
			return err
		}
		text, err := files.ReadFile(name)
		text = bytes.ReplaceAll(text, []byte(`xmlns="http://www.w3.org/2000/svg"`), nil) // a name, not a place
		if found := foreign.Find(text); found != nil {
			t.Errorf("%s: leads elsewhere: %s", name, found)
		}
		if strings.HasSuffix(name, ".html") {
			if found := inline.Find(text); found != nil {
				t.Errorf("%s: has code or style in it: %s", name, found)
			}
		}
		if strings.HasSuffix(name, ".js") {
			if found := markup.Find(text); found != nil {
				t.Errorf("%s: makes code out of text: %s", name, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`<script src="https://a.example/x.js">`, `@import "//a.example/x"`, `url(http://a)`} {
		if !foreign.MatchString(bad) {
			t.Errorf("%s was not found", bad)
		}
	}
	for _, bad := range []string{`<script>x()</script>`, `<a onclick="x()">`, `<b style="color:red">`} {
		if !inline.MatchString(bad) {
			t.Errorf("%s was not found", bad)
		}
	}
}

// What is served of uPlot is what the script fetches and checks.
func TestUPlotVersion(t *testing.T) {
	script, err := os.ReadFile("../../scripts/update-uplot.sh")
	if err != nil {
		t.Fatal(err)
	}
	version, err := files.ReadFile("assets/uplot/VERSION")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^version=(.*)\nintegrity=(.*)$`).FindSubmatch(script)
	if found == nil {
		t.Fatal("the script tells no version")
	}
	if want := fmt.Sprintf("uPlot %s\n%s\n", found[1], found[2]); string(version) != want {
		t.Errorf("got %q, want %q: run scripts/update-uplot.sh", version, want)
	}
}
