// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mustLook looks at a process once it has got to run its program.
func mustLook(t *testing.T, c *child, want func(Sightable) bool) (Sightable, string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s, why := Look(c.pid())
		if want(s) || time.Now().After(deadline) {
			return s, why
		}
	}
}

func TestLook(t *testing.T) {
	g := mustGroup(t)
	ssl := mustFind(t, "libssl.so.3")
	node := mustFind(t, "node")
	python := g.python()
	python.do("import ctypes; ctypes.CDLL(%q)", ssl)
	nss := g.python()
	nss.do("import ctypes; ctypes.CDLL(%q)", mustFind(t, "libssl3.so"))
	none := g.python()
	none.do("import ctypes")
	both := g.python()
	both.do("import ctypes; ctypes.CDLL(%q); ctypes.CDLL(%q)", mustFind(t, "libssl3.so"), mustFind(t, "libgnutls.so.30"))
	goPlain, goStripped := mustBuildGo(t, goBuild{}), mustBuildGo(t, goBuild{ldflags: "-s -w"})
	static := mustBuildStatic(t, true)
	java := filepath.Join(t.TempDir(), "S.java")
	mustWrite(t, java, "public class S { public static void main(String[] a) throws Exception { Thread.sleep(60000); } }\n")
	for _, tt := range []struct {
		name  string
		child *child
		kind  Kind
		file  string
		probe bool
		why   string
	}{
		{"python with ssl", python, OpenSSL, ssl, true, "can be probed"},
		{"node", g.start(node, "-e", "setTimeout(() => 0, 60000)"), OpenSSL, node, true, "can be probed"},
		{"Go", g.start(goPlain), Go, goPlain, true, "can be probed"},
		{"Go, stripped", g.start(goStripped), Go, goStripped, true, "can be probed"},
		{"OpenSSL inside, stripped", g.start(static), HiddenOpenSSL, static, false, "symbols are stripped"},
		{"OpenSSL inside and GnuTLS", g.start(mustFind(t, "env"), "LD_PRELOAD="+mustFind(t, "libgnutls.so.30"), static), HiddenOpenSSL, static, false, "symbols are stripped"},
		{"NSS", nss, NSS, mustFind(t, "libssl3.so"), false, "NSS"},
		{"NSS and GnuTLS", both, GnuTLS, mustFind(t, "libgnutls.so.30"), true, "can be probed"},
		{"Java", g.start(mustFind(t, "java"), java), Java, "libjvm.so", false, "Java brings its own"},
		{"none", none, None, "", false, "no TLS library"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, why := mustLook(t, tt.child, func(s Sightable) bool { return s.Kind == tt.kind })
			if got.Kind != tt.kind || got.Probe != tt.probe || !strings.HasSuffix(got.File, tt.file) || !strings.Contains(why, tt.why) {
				t.Errorf("got %+v, %q; want %s in %s, %v, %q", got, why, tt.kind, tt.file, tt.probe, tt.why)
			}
		})
	}
	if got, why := Look(1 << 30); got.Kind != None || !strings.Contains(why, "no such process") {
		t.Errorf("no process: got %+v, %q", got, why)
	}
	if got, why := Look(2); got.Kind != None || why == "" {
		t.Errorf("a thread of the kernel: got %+v, %q", got, why)
	}
}

// Who may not look says so.
func TestLookWithoutRights(t *testing.T) {
	setpriv := mustFind(t, "setpriv")
	if os.Getuid() != 0 {
		t.Skip("needs to be root, to become somebody else")
	}
	// The other half is run as nobody, who may not read where tests are built.
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(os.TempDir(), fmt.Sprintf("discover-%d.test", os.Getpid()))
	mustCopy(t, program, copied)
	defer os.Remove(copied)
	cmd := exec.Command(setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", copied, "-test.run=^TestLookAtParent$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), fmt.Sprintf("DISCOVER_LOOK_AT=%d", os.Getpid()))
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("cannot be read: run as root")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLookAtParent is the other half of TestLookWithoutRights. By itself it
// looks at this process, which has the TLS of Go.
func TestLookAtParent(t *testing.T) {
	text := os.Getenv("DISCOVER_LOOK_AT")
	if text == "" {
		if s, why := Look(os.Getpid()); s.Kind != Go || !s.Probe {
			t.Errorf("got %+v, %q; want Go that can be probed", s, why)
		}
		return
	}
	var pid int
	if _, err := fmt.Sscan(text, &pid); err != nil {
		t.Fatal(err)
	}
	s, why := Look(pid)
	t.Logf("%+v %s", s, why)
	if s.Kind != None {
		t.Errorf("got %+v, %q; want none", s, why)
	}
}

func TestMarks(t *testing.T) {
	text := func(s string) []byte {
		b := elfWith(0x401000, "f")
		// Without a section of constants, all that is loaded is searched.
		copy(b[0x1000:], s)
		return b
	}
	for s, want := range map[string]Kind{
		"../../third_party/boringssl/src/ssl/ssl_lib.cc": BoringSSL,
		"../ssl/ssl_lib.c": HiddenOpenSSL,
		"/cargo/registry/src/x/rustls-0.23.37/src/conn.rs": Rustls,
		"/cargo/registry/src/x/rustls-pemfile-2.0/src/a":   None,
		"/cargo/registry/src/x/tokio-rustls-0.26/src/a":    None,
		"OpenSSL 3.0.17": None,
		"":               None,
	} {
		if got := marked(bytes.NewReader(text(s))); got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	}
	if got := marked(strings.NewReader("no program")); got != None {
		t.Errorf("no program: got %s", got)
	}
	// A mark may lie across two parts of what is read.
	long := elfWith(0x401000, "f")
	le.PutUint64(long[sizeHeader+32:], 3*chunkSize)
	for at := chunkSize - 12; at < chunkSize+2; at++ {
		b := append(bytes.Clone(long), make([]byte, 3*chunkSize+0x1000)...)
		copy(b[0x1000+at:], "/rustls-0.2")
		if got := marked(bytes.NewReader(b)); got != Rustls {
			t.Errorf("at %d: got %s, want %s", at, got, Rustls)
		}
	}
}
