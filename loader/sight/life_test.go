// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/loader/sight"
)

const python = "/usr/bin/python3"

// paused is a program that says a line and waits for one.
type paused struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	err *strings.Builder
}

// startPaused starts a program in the cgroup and waits for its line.
func (r *rig) startPaused(env []string, name string, args ...string) (p *paused, line string) {
	r.t.Helper()
	p = &paused{t: r.t, cmd: r.command(name, args...), err: new(strings.Builder)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.err
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", p.cmd, err, p.err)
	}
	return p, strings.TrimSpace(line)
}

// goOn gives the line and waits for the end.
func (p *paused) goOn() {
	p.t.Helper()
	io.WriteString(p.in, "go on\n")
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%s: %v\n%s", p.cmd, err, p.err)
	}
}

// mustBe checks marks against the number of answers after the probes came.
func (m marks) mustBe(t testing.TB, answers int) {
	t.Helper()
	if want := (score{right: answers}); m.requests != want || m.responses != want || m.randoms.wrong != 0 {
		t.Errorf("got %+v, want %d of each right", m, answers)
	}
}

// mustBeButFirst is mustBe for connections without a ClientHello. Where the
// record is the proof it comes after the first request, which is told before
// it is sent.
func (m marks) mustBeButFirst(t testing.TB, answers, connections int) {
	t.Helper()
	if m.requests.none > connections {
		t.Errorf("%d requests without a socket on %d connections", m.requests.none, connections)
	}
	m.requests.right += m.requests.none
	m.requests.none = 0
	m.mustBe(t, answers)
}

func TestConnectionsOlderThanProbes(t *testing.T) {
	const connections = 20
	for mode, source := range map[string]sight.Source{"blocking": sight.SourceNested, "asyncio": sight.SourceRecord} {
		t.Run(mode, func(t *testing.T) {
			o, r := newOrigin(t), newRig(t)
			p, _ := r.startPaused(nil, python, "testdata/late.py", mode, strconv.Itoa(o.port), strconv.Itoa(connections), "5")
			before := o.answers()
			r.probe(sslOfPython(t, python)...)
			p.goOn()
			m := judge(t, o, r.settle())
			m.mustBeButFirst(t, o.answers()-before, connections)
			if m.randoms.right != 0 {
				t.Errorf("client randoms of hellos that nobody saw: %+v", m.randoms)
			}
			// A blocking client's first request is proved by its record, too.
			if n := m.sources[sight.SourceNone] + m.sources[sight.SourceRecord] + m.sources[source]; n < 8*connections || m.sources[source] < 7*connections {
				t.Errorf("proofs: got %v, want most by %s", m.sources, source)
			}
		})
	}
}

// TestCallbackOfOlderConnection: a callback of the first call that is seen uses
// another socket, which is then no proof.
func TestCallbackOfOlderConnection(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	p, _ := r.startPaused(nil, python, "testdata/callback.py", strconv.Itoa(o.port), "1", "10", "late")
	before := o.answers()
	r.probe(sslOfPython(t, python)...)
	p.goOn()
	judge(t, o, r.settle()).mustBeButFirst(t, o.answers()-before, 1)
}

// TestHTTP2OlderThanProbes: whose preface nobody saw is known by its frames.
func TestHTTP2OlderThanProbes(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	program := buildGo(t)
	p, _ := r.startPaused(nil, program, "late", strconv.Itoa(o.port), "5", "10")
	before := o.answers()
	r.probe(program)
	p.goOn()
	heads := map[sight.Dir]int{}
	for _, ev := range r.settle() {
		if ev.Kind != sight.Data {
			continue
		}
		if !ev.HTTP2 {
			t.Errorf("%d bytes taken for HTTP/1", len(ev.Data))
		}
		if _, ok := o.randoms()[ev.Cookie]; !ok {
			t.Errorf("cookie %d is none of the connections", ev.Cookie)
		}
		for b := ev.Data; len(b) >= 9; {
			length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
			if b[3] == 1 {
				heads[ev.Dir]++
			}
			b = b[min(len(b), 9+length):]
		}
	}
	// The read that waited when the probes came is not seen.
	if want := o.answers() - before; heads[sight.Read] < want-5 || heads[sight.Read] > want || heads[sight.Write] != want {
		t.Errorf("HEADERS: got %v, want %d each way, or 5 less read", heads, want)
	}
}

// TestReusedPointers: where SSL_free is not seen, a ClientHello ends what was
// before at the same place.
func TestReusedPointers(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	for _, file := range sslOfPython(t, python) {
		for _, target := range target(t, file) {
			target.Probes = slices.DeleteFunc(target.Probes, func(p sight.Probe) bool { return p.Symbol == "SSL_free" })
			if _, err := r.Attach(target); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.run([]int{0}, python, "testdata/blocking.py", strconv.Itoa(o.port), "50", "1")
	events := r.settle()
	judge(t, o, events).mustBe(t, o.answers())
	if !slices.ContainsFunc(events, func(ev sight.Event) bool { return ev.Kind == sight.Close }) {
		t.Error("no pointer came again, so nothing was tested")
	}
}

func TestFork(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	r.probe(sslOfPython(t, python)...)
	p, _ := r.startPaused(nil, python, "testdata/late.py", "blocking", strconv.Itoa(o.port), "5", "5", "fork")
	p.goOn()
	events := r.settle()
	judge(t, o, events).mustBe(t, o.answers())
	if !slices.ContainsFunc(events, func(ev sight.Event) bool { return ev.PID != uint32(p.cmd.Process.Pid) }) {
		t.Error("no event of the child")
	}
}

// TestDeletedLibrary probes a file that has no name any more.
func TestDeletedLibrary(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	dir := t.TempDir()
	for _, lib := range sslOfPython(t, python) {
		data, err := os.ReadFile(lib)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(lib)), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := r.startPaused([]string{"LD_LIBRARY_PATH=" + dir}, python, "testdata/late.py", "asyncio", strconv.Itoa(o.port), "5", "5")
	before := o.answers()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir) && strings.Contains(line, " r-xp ") {
			r.probe(fmt.Sprintf("/proc/%d/map_files/%s", p.cmd.Process.Pid, strings.Fields(line)[0]))
			found++
		}
	}
	if found != 2 {
		t.Fatalf("%d deleted libraries are mapped, want 2", found)
	}
	p.goOn()
	judge(t, o, r.settle()).mustBeButFirst(t, o.answers()-before, 5)
}

func TestScope(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	root, name := filepath.Split(r.cgroup)
	inner := filepath.Join(r.cgroup, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(inner)
	curl := need(t, "curl")
	r.probe(openssl(t, libraryOf(t, curl, "libcurl"))...)
	ask := func(cgroup string) int {
		cmd := commandIn(t, cgroup, curl, append([]string{"-sk", "-o", "/dev/null"}, urls(o, 1)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		n := 0
		for _, ev := range r.settle() { // of others as well, where all are seen
			if int(ev.PID) == cmd.Process.Pid {
				n++
			}
		}
		return n
	}
	_, elsewhere := testCgroup(t)
	elsewhere = filepath.Join(root, elsewhere)
	for _, tt := range []struct {
		name             string
		cgroups, exclude []string
		seen             map[string]bool
	}{
		{"one", []string{name}, nil, map[string]bool{r.cgroup: true, inner: true, elsewhere: false}},
		{"another", []string{filepath.Base(elsewhere)}, nil, map[string]bool{r.cgroup: false, inner: false, elsewhere: true}},
		{"only the inner", []string{name + "/inner"}, nil, map[string]bool{r.cgroup: false, inner: true, elsewhere: false}},
		{"but the inner", []string{name}, []string{name + "/inner"}, map[string]bool{r.cgroup: true, inner: false}},
		{"all but one", []string{"/"}, []string{name, "no/such"}, map[string]bool{r.cgroup: false, inner: false, elsewhere: true}},
		{"all", nil, nil, map[string]bool{r.cgroup: true, inner: true, elsewhere: true}},
	} {
		if err := r.SetScope(tt.cgroups, tt.exclude); err != nil {
			t.Fatal(err)
		}
		for cgroup, want := range tt.seen {
			if n := ask(cgroup); (n > 0) != want {
				t.Errorf("%s: %d events of %s, want some: %t", tt.name, n, cgroup, want)
			}
		}
	}
	if err := r.SetScope([]string{"no/such"}, nil); err == nil {
		t.Error("a scope that does not exist: no error")
	}
	if n := ask(elsewhere); n == 0 {
		t.Error("the scope changed with an error")
	}
}

// TestOwnProcess: what egressd itself sends over TLS is not looked at.
func TestOwnProcess(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	if err := r.SetScope([]string{"/"}, nil); err != nil {
		t.Fatal(err)
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	r.probe(self)
	get(t, fmt.Sprintf("https://127.0.0.1:%d/own", o.port))
	for _, ev := range r.settle() {
		if int(ev.PID) == os.Getpid() {
			t.Errorf("an event of the process itself: %q", ev.Data)
		}
	}
}

// TestDetachUnderLoad puts probes on and takes them off again while calls are
// under way. No process notices.
func TestDetachUnderLoad(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	program := buildGo(t)
	files := append(sslOfPython(t, python), need(t, "node"), program)
	port, plain := strconv.Itoa(o.port), strconv.Itoa(o.plain)
	running := map[*exec.Cmd]*strings.Builder{}
	for _, args := range [][]string{
		{python, "testdata/aio.py", port, plain, "1000", "4"},
		{python, "testdata/blocking.py", port, "20", "200"},
		{need(t, "node"), "testdata/node.mjs", "https", port, plain, "10", "300"},
		{program, "h1", port, "20", "200"},
		{program, "h2", port, "20", "200"},
	} {
		cmd, out := r.command(args[0], args[1:]...), new(strings.Builder)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[cmd] = out
	}
	ended := make(chan struct{})
	rounds := make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-ended:
				rounds <- n
				return
			default:
			}
			for _, c := range r.probe(files...) {
				if err := c.Close(); err != nil {
					t.Errorf("take off: %v", err)
				}
			}
		}
	}()
	for cmd, out := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, out)
		}
	}
	close(ended)
	t.Logf("%d rounds, %d answers, %+v", <-rounds, o.answers(), r.counts())
	events, known := r.settle(), o.randoms()
	for _, ev := range events {
		if _, ok := known[ev.Cookie]; !ok && ev.Cookie != 0 {
			t.Errorf("cookie %d is none of the connections, of which %d were not seen", ev.Cookie, o.missed)
		}
	}
}

// TestNothingStays: maps are as empty as before once connections have ended,
// whichever way they do.
func TestNothingStays(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	program := buildGo(t)
	r.probe(append(sslOfPython(t, python), need(t, "node"), program)...)
	port := strconv.Itoa(o.port)
	r.run([]int{0}, python, "testdata/blocking.py", port, "700", "1")
	r.run([]int{0}, python, "testdata/aio.py", port, "0", "700", "1")
	r.run([]int{0}, need(t, "node"), "testdata/node.mjs", "short", port, "0", "20", "20")
	r.run([]int{0}, program, "h1", port, "400", "1")
	if n := o.answers(); n != 2200 {
		t.Errorf("%d answers, want 2200", n)
	}
	p, _ := r.startPaused(nil, python, "testdata/late.py", "asyncio", port, "50", "2")
	if n := r.Sizes()["conns"]; n < 50 {
		t.Errorf("%d connections are known while 50 are open", n)
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	var closed int
	for range 100 {
		err := r.Sweep(func(ev sight.Event) {
			if ev.Kind != sight.Close || ev.PID != uint32(p.cmd.Process.Pid) {
				t.Errorf("swept: %+v", ev)
			}
			closed++
		})
		if err != nil {
			t.Fatal(err)
		}
		if sizes := r.Sizes(); sizes["conns"]+sizes["owners"]+sizes["goroutine_calls"] == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond) // sockets linger in the kernel
	}
	for name, n := range r.Sizes() {
		if n != 0 {
			t.Errorf("%d entries stay in %s", n, name)
		}
	}
	if closed > 50 {
		t.Errorf("%d connections swept, want 50 at most", closed)
	}
}

func TestBodiesStayHidden(t *testing.T) {
	const size = 1 << 20
	for _, version := range []string{"--http1.1", "--http2"} {
		t.Run(version, func(t *testing.T) {
			o, r := newOrigin(t), newRig(t)
			curl := need(t, "curl")
			r.probe(openssl(t, libraryOf(t, curl, "libcurl"))...)
			upload := filepath.Join(t.TempDir(), "body")
			if err := os.WriteFile(upload, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"-sk", version, "-o", "/dev/null"}
			for i := range 3 {
				args = append(args, fmt.Sprintf("https://127.0.0.1:%d/%d?body=%d", o.port, i, size))
			}
			r.run([]int{0}, curl, args...)
			r.run([]int{0}, curl, "-sk", version, "-o", "/dev/null", "-H", "Expect:", "-X", "GET", "-T", upload,
				fmt.Sprintf("https://127.0.0.1:%d/upload", o.port))
			events := r.settle()
			m := judge(t, o, events)
			// Without its socket a connection of curl is nobody's.
			if none := (score{none: 4}); r.Support().Sockets != "" {
				m.mustBe(t, 4)
			} else if m.requests != none || m.responses != none {
				t.Errorf("without sockets: got %+v, want 4 of each of nobody", m)
			}
			shown := map[sight.Dir]int{}
			var end uint64 // of what was read, as far as it is known
			for _, ev := range events {
				shown[ev.Dir] += len(ev.Data)
				if ev.Dir == sight.Read {
					end = max(end, ev.Offset+uint64(ev.Total))
				}
			}
			if end < 2*size {
				t.Errorf("the last answer was at %d, want behind two bodies", end)
			}
			if shown[sight.Read] > size/10 || shown[sight.Write] > size/10 {
				t.Errorf("shown: %v of %d bytes", shown, 3*size)
			}
		})
	}
}

// TestServersAreNotShown: connections that come to a shaped process are not
// what it asks of others.
func TestServersAreNotShown(t *testing.T) {
	r := newRig(t)
	node, curl := need(t, "node"), need(t, "curl")
	r.probe(node)
	cert, key := pemFiles(t)
	_, port := r.startPaused(nil, node, "testdata/server.mjs", cert, key)
	for _, version := range []string{"--http1.1", "--http2"} {
		url := "https://127.0.0.1:" + port + "/a"
		out, err := exec.Command(curl, "-sk", version, url, url, "-w", "%{http_code}\n").CombinedOutput()
		if err != nil || strings.Count(string(out), "429") != 2 {
			t.Fatalf("curl: %v\n%s", err, out)
		}
	}
	for _, ev := range r.settle() {
		if ev.Kind == sight.Data {
			t.Errorf("shown: %q", ev.Data)
		}
	}
}

// TestTLSInTLS: the socket of the outer connection carries the inner one.
func TestTLSInTLS(t *testing.T) {
	o, r := newOrigin(t), newRig(t)
	proxy := newTLSProxy(t)
	curl := need(t, "curl")
	r.probe(openssl(t, libraryOf(t, curl, "libcurl"))...)
	args := []string{"-sk", "-o", "/dev/null", "--http1.1", "--proxy-insecure", "-x", "https://" + proxy.addr}
	r.run([]int{0}, curl, append(args, urls(o, 3)...)...)
	requests, connects := 0, 0
	want := proxy.cookie()
	if r.Support().Sockets == "" {
		want = 0 // not known, and not guessed
	}
	for _, ev := range r.settle() {
		if ev.Kind != sight.Data || ev.Dir != sight.Write {
			continue
		}
		if ev.Cookie != want {
			t.Errorf("%q by socket %d, want %d", ev.Data, ev.Cookie, want)
		}
		switch {
		case strings.HasPrefix(string(ev.Data), "CONNECT "):
			connects++
		case strings.HasPrefix(string(ev.Data), "GET "):
			requests++
		}
	}
	if requests != 3 || connects != 1 {
		t.Errorf("got %d requests and %d tunnels, want 3 and 1", requests, connects)
	}
}

// TestLesserKernels runs with less of the kernel: what is not proved is not
// told, never told wrongly.
func TestLesserKernels(t *testing.T) {
	for _, tt := range []struct {
		name    string
		multi   bool
		closing bool
		pairs   []int
		nested  bool
		records bool
	}{
		{"perf events", false, true, []int{0}, true, true},
		{"sockets without lengths", true, true, []int{1}, true, true},
		{"no closing", true, false, []int{0}, true, true},
		{"no sockets", true, true, nil, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrigin(t)
			r := newRigAs(t, func(cfg sight.Config) (*sight.Sight, error) {
				return sight.OpenAs(cfg, tt.multi, tt.closing, tt.pairs...)
			})
			if got := r.Support(); got.Multi != tt.multi || got.Closing != tt.closing || (got.Sockets != "") != (tt.pairs != nil) {
				t.Fatalf("support: got %+v", got)
			}
			program := buildGo(t)
			curl := need(t, "curl")
			r.probe(append(openssl(t, libraryOf(t, curl, "libcurl")), program, libraryOf(t, need(t, "wget"), "libgnutls"))...)
			port, plain := strconv.Itoa(o.port), strconv.Itoa(o.plain)
			for _, run := range []struct {
				args  []string
				codes []int
				cause sight.Source
			}{
				{append([]string{curl, "-sk", "-o", "/dev/null"}, urls(o, 5)...), []int{0}, sight.SourceNested},
				{append([]string{need(t, "wget"), "-q", "--no-check-certificate", "-t1", "-O/dev/null"}, urls(o, 5)...), []int{8}, sight.SourceNested},
				{[]string{python, "testdata/aio.py", port, plain, "90", "3"}, []int{0}, sight.SourceRecord},
				{[]string{python, "testdata/blocking.py", port, "5", "5"}, []int{0}, sight.SourceFD},
				{[]string{program, "h1", port, "10", "10"}, []int{0}, sight.SourceNested},
				// Its garbage collector gives pointers again.
				{[]string{"/usr/bin/env", "GOGC=1", program, "h1", port, "200", "1"}, []int{0}, sight.SourceNested},
			} {
				before, answers := len(r.settle()), o.answers()
				r.run(run.codes, run.args[0], run.args[1:]...)
				m := judge(t, o, r.settle()[before:])
				answers = o.answers() - answers
				want := score{right: answers}
				if run.cause == sight.SourceNested && !tt.nested || run.cause == sight.SourceRecord && !tt.records {
					want = score{none: answers}
				}
				if m.requests != want || m.responses != want || m.randoms.wrong != 0 {
					t.Errorf("%s: got %+v, want %+v", run.args, m, want)
				}
			}
		})
	}
}

func TestAttachRefuses(t *testing.T) {
	r := newRig(t)
	good := target(t, libraryOf(t, need(t, "wget"), "libgnutls"))[0]
	for name, change := range map[string]func(*sight.Target){
		"another inode":   func(g *sight.Target) { g.Inode++ },
		"no file":         func(g *sight.Target) { g.Path = filepath.Join(t.TempDir(), "none") },
		"a directory":     func(g *sight.Target) { g.Path, g.Inode = "/usr", 0 },
		"nothing known":   func(g *sight.Target) { g.Probes = []sight.Probe{{Symbol: "main", Entry: 64}} },
		"no offset":       func(g *sight.Target) { g.Probes = []sight.Probe{{Symbol: "gnutls_record_recv"}} },
		"beyond the file": func(g *sight.Target) { g.Probes = []sight.Probe{{Symbol: "gnutls_record_recv", Entry: 1 << 40}} },
	} {
		bad := good
		change(&bad)
		if _, err := r.Attach(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c, err := r.Attach(good)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second does nothing
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
