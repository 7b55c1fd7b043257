// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/egressd/egressd/loader/sight"
	"github.com/egressd/egressd/loader/sight/discover"
)

// fetchName makes this test binary a client of Go's crypto/tls.
const fetchName = "EGRESSD_LAB_FETCH"

// fetch asks for a URL whose certificate nobody signed, and ends the process.
func fetch(url string) {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Get(url)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// What a Go program sends and gets inside TLS is shown, at the root cgroup. The
// clients of other libraries are those of loader/sight's own tests.
func TestSightOfGo(t *testing.T) {
	needVM(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Lab", "answer")
		io.WriteString(w, "body")
	}))
	defer server.Close()
	s, err := sight.Open(sight.Config{})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Logf("of this kernel the probes use: %+v", s.Support())
	var mu sync.Mutex
	shown := map[sight.Dir][]byte{}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		ran <- s.Run(ctx, func(ev sight.Event) {
			mu.Lock()
			defer mu.Unlock()
			shown[ev.Dir] = append(shown[ev.Dir], ev.Data...)
		})
	}()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	probeSelf(t, s)
	const path = "/seen-from-outside"
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fetchName+"="+server.URL+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("client: %v\n%s", err, out)
	}
	waitFor(t, "the request and its answer to be shown", func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := bytes.Join([][]byte{shown[sight.Write], shown[sight.Read]}, nil)
		return bytes.Contains(all, []byte("GET "+path)) && strings.Contains(string(all), "Lab: answer")
	})
}

// probeSelf puts probes on this binary. What this process itself does is not
// shown; what other processes of it do is.
func probeSelf(t testing.TB, s *sight.Sight) {
	t.Helper()
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	contents, err := discover.Inspect(f)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if len(contents.Targets) == 0 {
		t.Fatalf("nothing to probe in %s: %+v", path, contents)
	}
	for _, target := range contents.Targets {
		target.Path, target.Name, target.Inode = path, path, info.Sys().(*syscall.Stat_t).Ino
		c, err := s.Attach(target)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Errorf("take probes off: %v", err)
			}
		})
	}
}
