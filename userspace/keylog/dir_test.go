// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func mustDir(t *testing.T, path string, s *Store) *Dir {
	t.Helper()
	d, err := OpenDir(path, s, slog.New(slog.NewTextHandler(testWriter{t}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, d.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return d
}

// testWriter logs to a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// mustOpen opens a pipe as clients do.
func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func lineOf(random [randomSize]byte) string {
	return fmt.Sprintf("CLIENT_RANDOM %x %x\n", random, secretOf(1, 48))
}

// Writers come and go, and after each the next one is read as well.
func TestWritersComeAndGo(t *testing.T) {
	s := NewStore(Config{})
	d := mustDir(t, filepath.Join(mustTemp(t), "keys"), s)
	path, err := d.Make("a", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(20) {
		f := mustOpen(t, path)
		if _, err := f.WriteString(lineOf([randomSize]byte{i})); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // also with two at once
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{i}) != nil })
	}
	pipes := d.Pipes()
	want := []PipeCounts{{Name: "a", UID: uint32(os.Geteuid()), Writers: true, WriterCounts: WriterCounts{LineCounts{Lines: 20}, 20}}}
	if !reflect.DeepEqual(pipes, want) {
		t.Errorf("got %+v, want %+v", pipes, want)
	}
}

// Another process makes a pipe: it is read, without a word to the daemon.
func TestPipesOfOthers(t *testing.T) {
	s := NewStore(Config{})
	path := filepath.Join(mustTemp(t), "keys")
	mustDir(t, path, s)
	f := mustOpen(t, mustMake(t, mustFolder(t, path), "b", uint32(os.Geteuid()), false)) // waits for the reader
	if _, err := f.WriteString(lineOf([randomSize]byte{1})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{1}) != nil })
}

// A pipe that lost its name is read until its last writer has gone.
func TestPipesWithoutName(t *testing.T) {
	s := NewStore(Config{})
	d := mustDir(t, filepath.Join(mustTemp(t), "keys"), s)
	path, err := d.Make("a", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	if _, err := f.WriteString(lineOf([randomSize]byte{1})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{1}) != nil })
	if err := d.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Make("a", uint32(os.Geteuid()), false); err != nil {
		t.Fatal(err)
	}
	if n := len(d.Pipes()); n != 2 {
		t.Errorf("%d pipes are read, want both", n)
	}
	if _, err := f.WriteString(lineOf([randomSize]byte{2})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{2}) != nil })
	time.Sleep(orphanFor + 2*rescanEvery) // its writer is silent, and still there
	if _, err := f.WriteString(lineOf([randomSize]byte{3})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{3}) != nil })
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipe without a name is closed", func() bool { return len(d.Pipes()) == 1 })
}

// The next daemon finds the pipes of the one before, with their writers.
func TestNextDaemon(t *testing.T) {
	path := filepath.Join(mustTemp(t), "keys")
	first := mustDir(t, path, NewStore(Config{}))
	pipe, err := first.Make("a", other(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(path, NewStore(Config{}), slog.Default()); !errors.Is(err, ErrBusy) {
		t.Fatalf("got %v while a daemon reads", err)
	}
	keeper := mustFolder(t, path)
	r, err := keeper.OpenReader("a") // so that the writer is not killed in between
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f := mustOpen(t, pipe)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(lineOf([randomSize]byte{1})); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Pending(); n != len(lineOf([randomSize]byte{})) || err != nil {
		t.Errorf("got %d pending bytes, %v", n, err)
	}
	if err := keeper.Change(keeper.Retire); err != nil {
		t.Fatal(err)
	}
	s := NewStore(Config{})
	mustDir(t, path, s)
	if _, err := mustOpen(t, pipe).WriteString(lineOf([randomSize]byte{2})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{2}) != nil })
	if uid := mustStat(t, pipe).Uid; uid != other() {
		t.Errorf("the pipe is user %d's, want %d's", uid, other())
	}
}

func TestReader(t *testing.T) {
	f := mustFolder(t, filepath.Join(mustTemp(t), "keys"))
	path := mustMake(t, f, "a", uint32(os.Geteuid()), false)
	r, err := f.OpenReader("a")
	if err != nil {
		t.Fatal(err)
	}
	if r.Size() < 64<<10 || r.Inode() != mustStat(t, path).Ino {
		t.Errorf("got size %d, inode %d", r.Size(), r.Inode())
	}
	b := make([]byte, 10)
	try := func(wantN int, wantWriters bool) {
		t.Helper()
		if n, writers, err := r.TryRead(b); n != wantN || writers != wantWriters || err != nil {
			t.Errorf("got %d bytes, writers %v, %v; want %d, %v", n, writers, err, wantN, wantWriters)
		}
	}
	try(0, false)
	w := mustOpen(t, path)
	try(0, true)
	if _, err := w.WriteString("0123456789ab"); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Pending(); n != 12 || err != nil {
		t.Errorf("got %d pending bytes, %v", n, err)
	}
	try(10, true)
	try(2, true)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	try(0, false)
	ended := make(chan error, 1)
	waits := make(chan bool, 1)
	go func() {
		_, err := r.Read(b, func(writers bool) { waits <- writers })
		ended <- err
	}()
	if <-waits {
		t.Error("there are writers, it is said")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if err := os.WriteFile(f.Pipe("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.OpenReader("file"); err == nil {
		t.Error("a file was opened for a pipe")
	}
}

// Real clients of every common library write keys that are those of the server.
func TestRealClients(t *testing.T) {
	for _, version := range []struct {
		name string
		max  uint16
	}{{"TLS 1.2", tls.VersionTLS12}, {"TLS 1.3", tls.VersionTLS13}} {
		t.Run(version.name, func(t *testing.T) {
			server := NewStore(Config{}) // what the server says of the same sessions
			origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("hello"))
			}))
			origin.TLS = &tls.Config{MaxVersion: version.max, KeyLogWriter: server.Writer()}
			origin.StartTLS()
			defer origin.Close()
			_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			url := "https://127.0.0.1:" + port + "/"
			for _, client := range []struct {
				name string
				args []string
			}{
				{"curl", []string{"curl", "-sSkf", url}},
				{"wget", []string{"wget", "-qO-", "--no-check-certificate", url}},
				{"python", []string{"python3", "-c", "import ssl,urllib.request as u; print(u.urlopen('" + url + "', context=ssl._create_unverified_context()).read())"}},
				{"requests", []string{"python3", "-W", "ignore", "-c", "import requests; print(requests.get('" + url + "', verify=False).text)"}},
				{"node", []string{"node", "-e", "require('https').get('" + url + "', {rejectUnauthorized: false}, r => r.on('data', d => console.log('' + d)))"}},
				{"openssl", []string{"sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | openssl s_client -quiet -keylogfile $SSLKEYLOGFILE -connect 127.0.0.1:" + port + " 2>&1"}},
			} {
				t.Run(client.name, func(t *testing.T) { realClient(t, server, client.args) })
			}
		})
	}
}

func realClient(t *testing.T, server *Store, args []string) {
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("%s is not installed", args[0])
	}
	if strings.Contains(strings.Join(args, " "), "import requests") && exec.Command("python3", "-c", "import requests").Run() != nil {
		t.Skip("requests is not installed")
	}
	s := NewStore(Config{})
	d := mustDir(t, filepath.Join(mustTemp(t), "keys"), s)
	pipe, err := d.Make("client", other(), false)
	if err != nil {
		t.Fatal(err)
	}
	server.Clear()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SSLKEYLOGFILE="+pipe, "NODE_OPTIONS=--tls-keylog="+pipe)
	if os.Geteuid() == 0 && args[0] != "python3" { // which may be in root's home
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other(), Gid: other()}}
		cmd.Dir = "/"
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hello") {
		t.Fatalf("%v: %s", err, out)
	}
	server.mu.Lock()
	var randoms [][randomSize]byte
	for random := range server.sessions {
		randoms = append(randoms, random)
	}
	server.mu.Unlock()
	if len(randoms) != 1 {
		t.Fatalf("the server has had %d sessions, want 1", len(randoms))
	}
	eventually(t, "the keys are there", func() bool { return s.Find(randoms[0]).Complete() })
	if got, want := s.Find(randoms[0]), server.Find(randoms[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if c := s.Counts(); c.Garbage != 0 || c.Kept != 1 {
		t.Errorf("got counts %+v", c)
	}
}

// Many processes share a pipe and tear no line.
func TestSharedPipe(t *testing.T) {
	s := NewStore(Config{})
	d := mustDir(t, filepath.Join(mustTemp(t), "keys"), s)
	pipe, err := d.Make("shared", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	const writers, lines = 8, 300
	script := `i=0; while [ $i -lt ` + fmt.Sprint(lines) + ` ]; do printf 'CLIENT_RANDOM %02x%062x %096x\n' $0 $i $i; i=$((i+1)); done >> ` + pipe
	var commands []*exec.Cmd
	for i := range writers {
		cmd := exec.Command("sh", "-c", script, fmt.Sprint(i))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, cmd)
	}
	for _, cmd := range commands {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all lines have come", func() bool { return s.Counts().Lines == writers*lines })
	if c := s.Counts(); c.Garbage != 0 || c.Sessions != writers*lines {
		t.Errorf("got counts %+v", c)
	}
}

// A daemon that was overwhelmed, or stopped, reads the rest correctly.
func TestFlood(t *testing.T) {
	s := NewStore(Config{Max: 100})
	d := mustDir(t, filepath.Join(mustTemp(t), "keys"), s)
	pipe, err := d.Make("a", uint32(os.Geteuid()), false)
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, pipe)
	junk := strings.Repeat("no key at all\n", 5000)
	for range 20 {
		if _, err := f.WriteString(junk); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteString(lineOf([randomSize]byte{1})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys are there", func() bool { return s.Find([randomSize]byte{1}) != nil })
	if c := s.Counts(); c.Garbage != 20*5000 {
		t.Errorf("got counts %+v", c)
	}
}
