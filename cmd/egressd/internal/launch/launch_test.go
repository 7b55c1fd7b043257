// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// run runs a command to its end and returns its status and output.
func run(t *testing.T, c Command) (int, string) {
	t.Helper()
	signals := Catch()
	defer signals.Stop()
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	p, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(signals)
	if err != nil {
		t.Fatal(err)
	}
	return status, out.String()
}

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 3", 3},
		{"exit 255", 255},
		{"kill -TERM $$", 128 + 15},
		{"kill -KILL $$", 128 + 9},
	} {
		if got, out := run(t, Command{Args: []string{"sh", "-c", tt.script}}); got != tt.want {
			t.Errorf("%s: got status %d, want %d (%s)", tt.script, got, tt.want, out)
		}
	}
}

func TestCannotStart(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name   string
		status int
		want   string
	}{
		{"no-such-command-anywhere", 127, "command not found"},
		{filepath.Join(dir, "missing"), 127, "no such file or directory"},
		{write("text", "hello", 0o644), 126, "permission denied"},
		{write("script", "echo hello", 0o755), 126, "exec format error"},
		{dir, 126, ""},
	} {
		_, err := Start(Command{Args: []string{tt.name}})
		var failed *Error
		if !errors.As(err, &failed) {
			t.Errorf("%s: got error %v, want an Error", tt.name, err)
			continue
		}
		if failed.Status != tt.status || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), tt.name) != 1 {
			t.Errorf("%s: got status %d and error %q, want %d, %q and the name once", tt.name, failed.Status, err, tt.status, tt.want)
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	for _, tt := range []struct {
		signal syscall.Signal
		name   string
	}{{unix.SIGTERM, "TERM"}, {unix.SIGHUP, "HUP"}, {unix.SIGUSR1, "USR1"}, {unix.SIGUSR2, "USR2"}} {
		signals := Catch()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		script := `trap 'exit 42' ` + tt.name + `; echo ready; while :; do sleep 0.01; done`
		p, err := Start(Command{Args: []string{"sh", "-c", script}, Stdout: writer})
		if err != nil {
			t.Fatal(err)
		}
		writer.Close()
		if _, err := reader.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		reader.Close()
		if err := unix.Kill(os.Getpid(), tt.signal); err != nil {
			t.Fatal(err)
		}
		status, err := p.Wait(signals)
		if err != nil || status != 42 {
			t.Errorf("%s: got status %d, %v, want 42 of the command's handler", tt.name, status, err)
		}
		signals.Stop()
	}
}

func TestSignalsBeforeTheCommand(t *testing.T) {
	signals := Catch()
	defer signals.Stop()
	if got := signals.Ended(); got != 0 {
		t.Errorf("got signal %v, want none", got)
	}
	for _, s := range []syscall.Signal{unix.SIGPIPE, unix.SIGTERM} {
		if err := unix.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	// Delivery takes a moment.
	for {
		if got := signals.Ended(); got != 0 {
			if got != unix.SIGTERM {
				t.Errorf("got signal %v, want %v", got, unix.SIGTERM)
			}
			return
		}
	}
}

// TestSigpipeIsNotInherited holds that a command dies of a broken pipe as it
// would without us.
func TestSigpipeIsNotInherited(t *testing.T) {
	status, out := run(t, Command{Args: []string{"sh", "-c", "kill -PIPE $$; echo alive"}})
	if status != 128+13 {
		t.Errorf("got status %d and output %q, want %d", status, out, 128+13)
	}
}

func TestInvoker(t *testing.T) {
	env := func(uid, gid string) func(string) string {
		return func(name string) string { return map[string]string{"SUDO_UID": uid, "SUDO_GID": gid}[name] }
	}
	for _, tt := range []struct {
		name     string
		uid, gid string
		euid     int
		want     *syscall.Credential
		fails    bool
	}{
		{"no sudo", "", "", 0, nil, false},
		{"sudo by root", "0", "0", 0, nil, false},
		{"not root", "1000", "1000", 1000, nil, false},
		{"a user nobody knows", "54321", "54322", 0, &syscall.Credential{Uid: 54321, Gid: 54322}, false},
		{"no number", "me", "1", 0, nil, true},
		{"negative", "-1", "1", 0, nil, true},
		{"no group", "1000", "", 0, nil, true},
	} {
		got, err := Invoker(env(tt.uid, tt.gid), tt.euid)
		if (err != nil) != tt.fails || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, %v, want %+v, error %v", tt.name, got, err, tt.want, tt.fails)
		}
	}
}

func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	cred := &syscall.Credential{Uid: 54321, Gid: 54322, Groups: []uint32{54323}}
	_, out := run(t, Command{Args: []string{"sh", "-c", "id -u; id -g; id -G; grep CapEff /proc/self/status"}, User: cred, Env: os.Environ()})
	want := "54321\n54322\n54322 54323\nCapEff:\t0000000000000000\n"
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
