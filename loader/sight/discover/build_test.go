// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mustRun runs a command in dir and returns what it prints.
func mustRun(t testing.TB, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = exit.Stderr
		}
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr)
	}
	return string(out)
}

func mustWrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustInspect(t testing.TB, path string) Contents {
	t.Helper()
	c, err := Inspect(mustOpen(t, path))
	if err != nil {
		t.Fatalf("inspect %s: %v", path, err)
	}
	return c
}

// mustFind returns the path of a program, or of the library of a soname as the
// linker's cache has it.
func mustFind(t testing.TB, name string) string {
	t.Helper()
	if !strings.Contains(name, ".so") {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is not installed", name)
		}
		return path
	}
	for line := range strings.Lines(mustRun(t, "", nil, "/sbin/ldconfig", "-p")) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[0] == name && strings.Contains(line, "x86-64") {
			path, err := filepath.EvalSymlinks(fields[len(fields)-1])
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// goProgram speaks TLS by crypto/tls, and has a fork of it as far as names go:
// a connection of its own and one that is wrapped.
const goProgram = `package main

import (
	"crypto/tls"
	"os"
	"time"

	"example.org/client/utls"
)

func main() {
	if len(os.Args) > 1 {
		c, err := tls.Dial("tcp", os.Args[1], &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			c.Write([]byte("x"))
			c.Read(make([]byte, 4096))
		}
		var u utls.Stream = &utls.UConn{Conn: &utls.Conn{}}
		u.Read(nil)
		u.Write(nil)
		u.(*utls.UConn).Conn.Write(nil)
	}
	time.Sleep(time.Minute)
}
`

const goFork = `package utls

import "os"

type Stream interface {
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
}

type Conn struct{ f *os.File }

//go:noinline
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 3 {
		return 0, os.ErrClosed
	}
	return c.f.Read(b)
}

//go:noinline
func (c *Conn) Write(b []byte) (int, error) {
	if len(b) == 3 {
		return 0, os.ErrClosed
	}
	return c.f.Write(b)
}

type UConn struct {
	*Conn
	n int
}

// Read only leads to the one of Conn, Write does not.
//
//go:noinline
func (c *UConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n += n
	return n, err
}

//go:noinline
func (c *UConn) Write(b []byte) (int, error) {
	if c.n++; c.n > 7 {
		return c.n, os.ErrDeadlineExceeded
	}
	return c.Conn.f.WriteString(string(b))
}
`

const goCgo = `package main

// #include <stdlib.h>
// static int twice(int n) { return 2 * n; }
import "C"

func init() { _ = C.twice(21) }
`

// goBuild describes how a Go program is built.
type goBuild struct {
	mode, ldflags, arch string
	cgo                 bool // with C code and the system's linker
}

func (b goBuild) String() string {
	s := cmp.Or(b.arch, "amd64") + " " + cmp.Or(b.mode, "exe") + " " + b.ldflags
	if b.cgo {
		s += " cgo"
	}
	return strings.TrimSpace(s)
}

// mustBuildGo builds the program above and returns its path.
func mustBuildGo(t testing.TB, b goBuild) string {
	t.Helper()
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "go.mod"), "module example.org/client\n\ngo 1.26\n")
	mustWrite(t, filepath.Join(dir, "main.go"), goProgram)
	mustWrite(t, filepath.Join(dir, "utls", "utls.go"), goFork)
	env := []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"}
	if b.cgo {
		mustFind(t, "gcc")
		mustWrite(t, filepath.Join(dir, "cgo.go"), goCgo)
		env[0] = "CGO_ENABLED=1"
		b.ldflags += " -linkmode=external"
	}
	if b.arch != "" {
		env = append(env, "GOARCH="+b.arch)
	}
	out := filepath.Join(dir, "client")
	args := []string{"build", "-o", out, "-ldflags", b.ldflags}
	if b.mode != "" {
		args = append(args, "-buildmode="+b.mode)
	}
	mustRun(t, dir, env, "go", append(args, ".")...)
	return out
}
