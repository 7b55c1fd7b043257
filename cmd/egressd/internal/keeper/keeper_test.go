// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/keylog"
)

// The test's binary is also the keeper and a daemon that reads a folder.
const (
	daemonCommand = "daemon"
	lingerEnv     = "EGRESSD_TEST_LINGER"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == CommandName:
		signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
		defer stop()
		linger, _ := time.ParseDuration(os.Getenv(lingerEnv))
		if err := Run(ctx, os.Args[2], Config{Linger: linger}); err != nil {
			panic(err)
		}
	case len(os.Args) == 3 && os.Args[1] == daemonCommand:
		if err := runDaemon(os.Args[2]); err != nil {
			panic(err)
		}
	default:
		os.Exit(m.Run())
	}
}

// runDaemon makes a pipe and prints its path, and then the number of lines
// whenever it is asked for.
func runDaemon(dir string) error {
	k, err := OpenKeys(KeysConfig{Dir: dir, Self: "/proc/self/exe", Logger: slog.Default()})
	if err != nil {
		return err
	}
	path, err := k.Make("client", uint32(os.Geteuid()), false)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	fmt.Println(path)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(k.Store().Counts().Lines)
		}
	}()
	return errors.Join(k.Run(ctx), k.Close(false))
}

// mustDir is the path of a folder on a tmpfs that may be made.
func mustDir(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("/dev/shm", "egressd-keeper-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A keeper that is left ends when its pipes have gone and no client is
		// left, which shows in its lock.
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "keys")
}

func mustFolder(t *testing.T, dir string) *keylog.Folder {
	t.Helper()
	f, err := keylog.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// daemon is a process that reads a folder.
type daemon struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe string
}

func mustDaemon(t *testing.T, dir string) *daemon {
	t.Helper()
	d := &daemon{cmd: exec.Command("/proc/self/exe", daemonCommand, dir)}
	d.cmd.Stderr = os.Stderr
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.kill() })
	d.out = bufio.NewReader(out)
	line, err := d.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the daemon did not start: %v", err)
	}
	d.pipe = strings.TrimSuffix(line, "\n")
	return d
}

// kill ends the daemon at once.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

func (d *daemon) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// lines asks how many lines have come.
func (d *daemon) lines(t *testing.T) (n int) {
	t.Helper()
	if _, err := fmt.Fprintln(d.in); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(d.out, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// mustKeeper starts a keeper and waits until it works. wait waits for its end.
func mustKeeper(t *testing.T, f *keylog.Folder, linger time.Duration) (process *os.Process, wait func() error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", CommandName, f.Path())
	cmd.Env = append(os.Environ(), lingerEnv+"="+linger.String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var err error
	go func() { err = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	eventually(t, "the keeper works", func() bool { return held(t, f, keylog.Keeper) })
	return cmd.Process, func() error { <-done; return err }
}

func held(t *testing.T, f *keylog.Folder, l keylog.Lock) bool {
	t.Helper()
	is, err := f.Held(l)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// client is a real program that makes n requests and writes their keys.
type client struct {
	name string
	args func(url string, n int) []string
}

var clients = []client{
	{"curl", func(url string, n int) []string {
		return []string{"curl", "-sSkf", "--no-keepalive", "-H", "Connection: close", url + "[1-" + fmt.Sprint(n) + "]"}
	}},
	{"python", func(url string, n int) []string {
		return []string{"python3", "-c", fmt.Sprintf("import ssl,urllib.request as u\nfor i in range(%d): print(u.urlopen('%s', context=ssl._create_unverified_context()).read())", n, url)}
	}},
	{"node", func(url string, n int) []string {
		return []string{"node", "-e", fmt.Sprintf("let get = n => n && require('https').get('%s', {rejectUnauthorized: false, agent: false}, r => { r.on('data', d => console.log('' + d)); r.on('end', () => get(n - 1)) }); get(%d)", url, n)}
	}},
	{"wget", func(url string, n int) []string {
		args := []string{"wget", "-qO-", "--no-check-certificate", "--no-http-keep-alive"}
		for range n {
			args = append(args, url)
		}
		return args
	}},
}

// start starts the client; the test fails if it does not end well, which a
// client does not that is killed or waits for ever.
func (c client) start(t *testing.T, url, pipe string, n int) (wait func()) {
	t.Helper()
	args := c.args(url, n)
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("%s is not installed", args[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SSLKEYLOGFILE="+pipe, "NODE_OPTIONS=--tls-keylog="+pipe)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer cancel()
		if err := cmd.Wait(); err != nil || strings.Count(out.String(), "hello") != n {
			t.Errorf("%s: %v, %d answers, want %d: %.300s", c.name, err, strings.Count(out.String(), "hello"), n, out.String())
		}
	}
}

func mustOrigin(t *testing.T) string {
	t.Helper()
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("hello"))
	}))
	t.Cleanup(origin.Close)
	return origin.URL + "/"
}

// Whatever happens to the daemon, no client waits for ever and none is killed.
func TestClientsGoOn(t *testing.T) {
	url := mustOrigin(t)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := mustDir(t)
			f := mustFolder(t, dir)
			d := mustDaemon(t, dir)
			eventually(t, "a keeper is there", func() bool { return held(t, f, keylog.Keeper) })
			c.start(t, url, d.pipe, 1)()
			eventually(t, "keys have come", func() bool { return d.lines(t) > 0 })

			// Stopped, with clients before and while, and a pipe that fills.
			wait := c.start(t, url, d.pipe, 30)
			d.signal(t, unix.SIGSTOP)
			wait()
			fill(t, d.pipe)
			c.start(t, url, d.pipe, 2)()
			d.signal(t, unix.SIGCONT)
			before := d.lines(t)
			c.start(t, url, d.pipe, 2)()
			eventually(t, "keys come again", func() bool { return d.lines(t) > before })

			// Killed, with clients before and after.
			wait = c.start(t, url, d.pipe, 30)
			d.kill()
			wait()
			c.start(t, url, d.pipe, 2)()
			fill(t, d.pipe)

			// Another in its place.
			wait = c.start(t, url, d.pipe, 30)
			next := mustDaemon(t, dir)
			wait()
			before = next.lines(t)
			c.start(t, url, next.pipe, 2)()
			eventually(t, "keys come to the next daemon", func() bool { return next.lines(t) > before })

			// An orderly end, and none.
			wait = c.start(t, url, next.pipe, 30)
			next.signal(t, unix.SIGTERM)
			if err := next.cmd.Wait(); err != nil {
				t.Error(err)
			}
			wait()
			c.start(t, url, next.pipe, 2)()
			if !held(t, f, keylog.Keeper) {
				t.Error("the keeper is gone")
			}
		})
	}
}

// fill writes more than a pipe can hold.
func fill(t *testing.T, pipe string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// By another process, which a broken pipe kills. Lines of more than half a
	// page take a page each.
	cmd := exec.CommandContext(ctx, "sh", "-c", `i=0; while [ $i -lt 1000 ]; do printf '%02100d\n' $i; i=$((i+1)); done >>"$0"`, pipe)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a writer: %v: %s", err, out)
	}
}

// Without daemon and clients the keeper ends, and leaves what clients can
// write to; a daemon that comes later makes pipes again.
func TestKeeperEnds(t *testing.T) {
	dir := mustDir(t)
	f := mustFolder(t, dir)
	path, err := f.Make("client", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	_, wait := mustKeeper(t, f, 300*time.Millisecond)
	writer, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if !held(t, f, keylog.Keeper) {
		t.Error("the keeper has gone though there is a client")
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(path); err != nil || to != "/dev/null" {
		t.Fatalf("got link to %q, %v", to, err)
	}
	fill(t, path)
	d := mustDaemon(t, dir)
	if info, err := os.Lstat(d.pipe); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("got %v, %v; want a pipe", info, err)
	}
}

// Asked to end, it leaves links at once and stays for clients that write.
func TestKeeperIsAskedToEnd(t *testing.T) {
	f := mustFolder(t, mustDir(t))
	path, err := f.Make("client", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	process, wait := mustKeeper(t, f, time.Hour)
	writer, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a link is there", func() bool { to, err := os.Readlink(path); return err == nil && to == "/dev/null" })
	eventually(t, "its place is free", func() bool { return !held(t, f, keylog.Keeper) })
	time.Sleep(grace + 2*tick)
	junk := make([]byte, 3<<20)
	if n, err := writer.Write(junk); n != len(junk) || err != nil {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// Asked to end while a daemon reads, it leaves the pipes to the daemon, which
// has another keeper soon.
func TestKeeperIsReplaced(t *testing.T) {
	dir := mustDir(t)
	f := mustFolder(t, dir)
	if _, err := f.Make("client", uint32(os.Geteuid()), false); err != nil {
		t.Fatal(err)
	}
	process, wait := mustKeeper(t, f, time.Hour)
	d := mustDaemon(t, dir)
	if err := process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(d.pipe); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("got %v, %v; want a pipe", info, err)
	}
	eventually(t, "another keeper is there", func() bool { return held(t, f, keylog.Keeper) })
}

// A folder that is gone needs no keeper.
func TestKeeperOfNothing(t *testing.T) {
	f := mustFolder(t, mustDir(t))
	_, wait := mustKeeper(t, f, time.Hour)
	if err := os.RemoveAll(f.Path()); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// One keeper is enough.
func TestOneKeeper(t *testing.T) {
	f := mustFolder(t, mustDir(t))
	if _, err := f.Make("client", uint32(os.Geteuid()), false); err != nil {
		t.Fatal(err)
	}
	mustKeeper(t, f, time.Hour)
	if err := Run(context.Background(), f.Path(), Config{}); err != nil {
		t.Errorf("the second: %v", err)
	}
	if p, err := Start(f, "/proc/self/exe", false); p != nil || err != nil {
		t.Errorf("got %v, %v; want none started", p, err)
	}
}

// What a keeper reads while no daemon lives is on no way to anywhere, and what
// a daemon reads the keeper leaves alone.
func TestKeeperStealsNothing(t *testing.T) {
	dir := mustDir(t)
	d := mustDaemon(t, dir)
	f := mustFolder(t, dir)
	eventually(t, "a keeper is there", func() bool { return held(t, f, keylog.Keeper) })
	// So many at a time that the pipe is never full enough for the keeper.
	const rounds, lines = 20, 500
	for round := range rounds {
		cmd := exec.Command("sh", "-c", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do printf 'CLIENT_RANDOM %%064x %%096x\n' $i $i; i=$((i+1)); done >>"$0"`, lines), d.pipe)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		eventually(t, "all lines have come", func() bool { return d.lines(t) == (round+1)*lines })
	}
}

// The folder of one command goes with it, unless some of it goes on.
func TestOwnFolder(t *testing.T) {
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprint("left ", left), func(t *testing.T) {
			dir, err := OwnDir()
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			k, err := OpenKeys(KeysConfig{Dir: dir, Self: "/proc/self/exe", Own: true, Logger: slog.Default()})
			if err != nil {
				t.Fatal(err)
			}
			path, err := k.Make("client", uint32(os.Geteuid()), true)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- k.Run(ctx) }()
			writer, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer writer.Close()
			if _, err := fmt.Fprintf(writer, "CLIENT_RANDOM %064x %096x\nx\n", 1, 2); err != nil {
				t.Fatal(err)
			}
			eventually(t, "counts are told", func() bool {
				c, err := ReadCounts(dir)
				return err == nil && len(c.Pipes) == 1 && c.Pipes[0].Sessions == 1 && c.Pipes[0].Lines == 1 && c.Garbage == 1 && c.Pipes[0].Name == "client"
			})
			stop()
			if err := errors.Join(<-done, k.Close(left)); err != nil {
				t.Error(err)
			}
			if n := k.Store().Counts().Kept; n != 0 {
				t.Errorf("%d sessions are still known", n)
			}
			if !left {
				if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("got %v, want no folder", err)
				}
				return
			}
			if to, err := os.Readlink(path); err != nil || to != "/dev/null" {
				t.Errorf("got link to %q, %v", to, err)
			}
			for range 3 { // the keeper lives while a client writes
				junk := make([]byte, 2<<20)
				if n, err := writer.Write(junk); n != len(junk) || err != nil {
					t.Errorf("wrote %d bytes, %v", n, err)
				}
			}
			if err := writer.Close(); err != nil {
				t.Error(err)
			}
			f := mustFolder(t, dir)
			eventually(t, "the keeper has ended", func() bool { return !held(t, f, keylog.Keeper) })
		})
	}
}

func TestCountsOfNobody(t *testing.T) {
	c, err := ReadCounts(mustDir(t))
	if err != nil || len(c.Pipes) != 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}
