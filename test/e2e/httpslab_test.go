// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/test/tlsorigin"
)

// shop is where HTTPS origins of a test are: originHost, a name that only
// processes of the test know, with certificates of an authority that only they
// trust.
type shop struct {
	authority *tlsorigin.Authority
	trust     string // file with the authority's certificate
	hosts     string // in the place of /etc/hosts
}

func newShop(t testing.TB) *shop {
	t.Helper()
	needRoot(t)
	dir := shortDir(t)
	s := &shop{trust: filepath.Join(dir, "ca.pem"), hosts: filepath.Join(dir, "hosts")}
	var err error
	if s.authority, err = tlsorigin.NewAuthority(); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s.trust, string(s.authority.PEM()))
	mustWrite(t, s.hosts, "127.0.0.1 localhost "+originHost+"\n::1 localhost\n")
	return s
}

// open starts an origin on a free port of 127.0.0.1.
func (s *shop) open(t testing.TB, c tlsorigin.Config) (o *tlsorigin.Origin, port int) {
	t.Helper()
	var err error
	if c.Certificate, err = s.authority.Certify(originHost); err != nil {
		t.Fatal(err)
	}
	if o, err = tlsorigin.New(c); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- o.Serve(ln) }()
	t.Cleanup(func() {
		// Connections that have ended are closed twice.
		if err := o.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("close the origin: %v", err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the origin ended: %v", err)
		}
	})
	return o, ln.Addr().(*net.TCPAddr).Port
}

// within is the command that runs another one where the name is known.
func (s *shop) within() []string {
	return []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, s.hosts}
}

// env makes all clients trust the authority, and keeps the proxies of whoever
// runs the tests away from them.
func (s *shop) env(t testing.TB) []string {
	t.Helper()
	return trusting(t, s.trust)
}

// trusting is what clients need in their environment to trust the certificate in
// a file.
func trusting(t testing.TB, file string) []string {
	t.Helper()
	pin, err := tlsorigin.Pin([]byte(mustRead(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"http_proxy=", "https_proxy=", "all_proxy=", "no_proxy=", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=", "NO_PROXY=",
		"SSL_CERT_FILE=" + file, "REQUESTS_CA_BUNDLE=" + file, "CURL_CA_BUNDLE=" + file, "NODE_EXTRA_CA_CERTS=" + file,
		"LAB_PIN=" + pin, "TMPDIR=" + here.dir, // what a client leaves goes with the site
	}
}

// labRun is what a client of the lab is asked to do.
type labRun struct {
	port  int
	path  string // of the origin, begins the paths of the requests
	count int    // of requests
	width int    // how many at a time
}

func (r labRun) base() string { return fmt.Sprintf("https://%s:%d%s", originHost, r.port, r.path) }

// pages are those that the origin needs for a run.
func (r labRun) pages(t testing.TB) map[string]string {
	t.Helper()
	return map[string]string{r.path + "/page": mustRead(t, filepath.Join(clientsDir, "page.html"))}
}

// start starts a client. before is a command that runs it, or nothing.
func (s *shop) start(t testing.TB, h how, c labClient, r labRun, before ...string) *process {
	t.Helper()
	h.env = append(s.env(t), h.env...)
	return start(t, h, append(append(s.within(), before...), c.command(t, r)...)...)
}

// reply is an answer as a client got it.
type reply struct {
	I          int
	Status     int
	RetryAfter string `json:"retry_after"`
}

// replies waits for a client's end and reads what it printed: one reply to each
// request.
func replies(t testing.TB, p *process, c labClient, r labRun) map[int]reply {
	t.Helper()
	if status := p.wait(t, 90*time.Second); status != 0 {
		t.Fatalf("%s: got exit status %d\n%s%s", c.name, status, p.stdout.String(), p.stderr.String())
	}
	got := map[int]reply{}
	for line := range strings.Lines(p.stdout.String()) {
		one := reply{I: -1}
		if err := json.Unmarshal([]byte(line), &one); err != nil || one.I < 0 || one.Status == 0 {
			t.Fatalf("%s: printed %q: %v\n%s", c.name, line, err, p.stderr.String())
		}
		if _, twice := got[one.I]; twice {
			t.Errorf("%s: told of request %d twice", c.name, one.I)
		}
		got[one.I] = one
	}
	if len(got) != r.count {
		t.Errorf("%s: got %d answers, want %d\n%s%s", c.name, len(got), r.count, p.stdout.String(), p.stderr.String())
	}
	return got
}

// arrived is what the origin saw of a run, by the number of the request.
func arrived(t testing.TB, log tlsorigin.Log, r labRun) map[int]tlsorigin.Request {
	t.Helper()
	got := map[int]tlsorigin.Request{}
	for _, req := range log.Requests {
		rest, mine := strings.CutPrefix(req.Path, r.path+"/")
		if !mine || strings.HasPrefix(rest, "page") {
			continue
		}
		i := number(rest)
		if _, twice := got[i]; twice {
			t.Errorf("the origin received %s twice", req.Path)
		}
		got[i] = req
	}
	if len(got) != r.count {
		t.Errorf("the origin received %d requests of %s, want %d", len(got), r.path, r.count)
	}
	return got
}

// mustAgree looks whether a client got what the origin answered.
func mustAgree(t testing.TB, got map[int]reply, sent map[int]tlsorigin.Request) {
	t.Helper()
	for i, req := range sent {
		if want := (reply{i, req.Status, req.RetryAfter}); got[i] != want {
			t.Errorf("%s: the client got %+v, the origin sent %+v", req.Path, got[i], want)
		}
	}
}

// TestHTTPSLab holds the clients of the lab against its origin, without egressd:
// they tell the truth, speak what they are said to speak, and the origin's limit
// would be met.
func TestHTTPSLab(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, c := range labClients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := labRun{path: "/lab/" + c.name, count: 9, width: 3}
			o, port := s.open(t, tlsorigin.Config{
				Rate: 1, Tell: true, Pages: run.pages(t),
				Forced: []tlsorigin.Forced{{Path: run.path + "/4", Status: 503, RetryAfter: "17"}},
			})
			run.port = port
			p := s.start(t, how{}, c, run)
			got := replies(t, p, c, run)
			log := o.Log()
			sent := arrived(t, log, run)
			mustAgree(t, got, sent)
			limited := 0
			for _, r := range sent {
				if r.Status == 429 {
					limited++
				}
				if (r.Stream != 0) != c.http2 {
					t.Errorf("%s came on stream %d, want HTTP/2: %v", r.Path, r.Stream, c.http2)
				}
			}
			if limited == 0 {
				t.Error("the origin limited nothing: it tests nothing")
			}
			if sent[4].Status != 503 || sent[4].RetryAfter != "17" {
				t.Errorf("got %+v, want 503 and 17", sent[4])
			}
			for _, conn := range log.Connections {
				// How a connection ends is the client's matter: some leave
				// without a word, and what they had not read resets it.
				if conn.SNI != originHost || conn.Version == 0 {
					t.Errorf("got connection %+v", conn)
				}
			}
			if t.Failed() {
				t.Logf("%s%s", p.stdout.String(), p.stderr.String())
			}
		})
	}
}

// goClient is the client in Go, built when it is first asked for.
var goClient = sync.OnceValues(func() (string, error) {
	path := filepath.Join(here.dir, "goclient")
	out, err := exec.Command("go", "build", "-o", path, "./"+filepath.Join(clientsDir, "goclient")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build goclient: %w\n%s", err, out)
	}
	return path, nil
})

func mustGoClient(t testing.TB) string {
	t.Helper()
	path, err := goClient()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
