// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// browser is a real Chromium of one test, told what to do through Playwright.
type browser struct {
	in     io.WriteCloser
	out    *bufio.Reader
	stderr buffer
}

// newBrowser starts a browser that ends with the test.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	needRoot(t)
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: scripts/install-deps.sh test installs it", err)
	}
	modules := strings.TrimSpace(mustRun(t, "../../scripts/playwright.sh"))
	b := new(browser)
	cmd := exec.Command("node", "playwright/driver.mjs")
	home := shortDir(t)
	cmd.Env = append(os.Environ(), markerName+"="+here.marker, "EGRESSD_PLAYWRIGHT="+modules, "EGRESSD_CHROMIUM="+chromium,
		"HOME="+home, "TMPDIR="+home, "http_proxy=", "https_proxy=", "all_proxy=", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=")
	cmd.Stderr = &b.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if b.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// At the end of its input it closes the browser, too.
		b.in.Close()
		late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !late.Stop() || err != nil {
			t.Errorf("the browser ended with %v\n%s", err, b.stderr.String())
		}
	})
	return b
}

// do has the browser do one thing, and decodes what comes of it into value,
// unless that is nil. Arguments are names and values in turn.
func (b *browser) do(t testing.TB, what string, value any, args ...any) {
	t.Helper()
	command := map[string]any{"do": what}
	for i := 0; i < len(args); i += 2 {
		command[args[i].(string)] = args[i+1]
	}
	text, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, '\n')); err != nil {
		t.Fatalf("%s: %v\n%s", text, err, b.stderr.String())
	}
	line, err := b.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%s: %v\n%s", text, err, b.stderr.String())
	}
	var answer struct {
		Value json.RawMessage
		Error string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		t.Fatalf("%s: %v in %s", text, err, line)
	}
	if answer.Error != "" {
		t.Fatalf("%s: %s", text, answer.Error)
	}
	if value != nil {
		if err := json.Unmarshal(answer.Value, value); err != nil {
			t.Fatalf("%s: %v in %s", text, err, answer.Value)
		}
	}
}

// tab is one page in a browser.
type tab struct {
	b    *browser
	name string
}

// sight is how a tab looks at what it shows.
type sight struct {
	width, height int
	scheme        string // light or dark
	still         bool   // motion is not wanted
}

func (b *browser) open(t testing.TB, name, url string, s sight) *tab {
	t.Helper()
	motion := "no-preference"
	if s.still {
		motion = "reduce"
	}
	b.do(t, "open", nil, "page", name, "url", url, "width", s.width, "height", s.height, "scheme", s.scheme, "motion", motion)
	return &tab{b, name}
}

// eval decodes what an expression is worth.
func (p *tab) eval(t testing.TB, js string, value any) {
	t.Helper()
	p.b.do(t, "eval", value, "page", p.name, "js", js)
}

func (p *tab) text(t testing.TB, js string) (s string) {
	t.Helper()
	p.eval(t, "String("+js+")", &s)
	return s
}

// until waits until an expression is true.
func (p *tab) until(t testing.TB, js string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var ok bool
		if p.eval(t, "Boolean("+js+")", &ok); ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("page %s: waited in vain for %s; it shows\n%s", p.name, js, p.text(t, "document.body.innerText"))
		}
	}
}

func (p *tab) press(t testing.TB, keys ...string) {
	t.Helper()
	for _, key := range keys {
		p.b.do(t, "press", nil, "page", p.name, "key", key)
	}
}

func (p *tab) write(t testing.TB, text string) {
	t.Helper()
	p.b.do(t, "type", nil, "page", p.name, "text", text)
}

// tabTo presses Tab until what has the focus is what js says, as somebody
// without a mouse does.
func (p *tab) tabTo(t testing.TB, js string) {
	t.Helper()
	for range 60 {
		p.press(t, "Tab")
		var there bool
		if p.eval(t, "((el) => Boolean("+js+"))(document.activeElement)", &there); there {
			return
		}
	}
	t.Fatalf("page %s: Tab does not lead to %s", p.name, js)
}

// problems are what the browser complained of and what was asked of another
// origin, since the last call.
func (p *tab) problems(t testing.TB) (all []string) {
	t.Helper()
	p.b.do(t, "problems", &all, "page", p.name)
	return all
}

// violations are those of the rules for accessible pages.
func (p *tab) violations(t testing.TB) (all []string) {
	t.Helper()
	p.b.do(t, "axe", &all, "page", p.name)
	return all
}

// shot keeps a picture of the page: in $EGRESSD_SCREENSHOTS, or with what the
// test leaves (go test -artifacts).
func (p *tab) shot(t testing.TB, full bool) {
	t.Helper()
	dir := os.Getenv("EGRESSD_SCREENSHOTS")
	if dir == "" {
		dir = t.(*testing.T).ArtifactDir()
	}
	path := filepath.Join(dir, "page-"+p.name+".png")
	p.b.do(t, "shot", nil, "page", p.name, "path", path, "full", full)
	if info, err := os.Stat(path); err != nil || info.Size() < 1000 {
		t.Errorf("picture %s: %v", path, err)
	}
	t.Logf("picture: %s", path)
}
