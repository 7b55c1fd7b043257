// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cgroup"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/proxy"
)

// asks keeps asking an HTTPS server for its pages.
const asks = `
import http.client, ssl, sys, time
while True:
    c = http.client.HTTPSConnection("127.0.0.1", int(sys.argv[1]), context=ssl._create_unverified_context())
    c.request("GET", "/page"); c.getresponse().read(); c.close()
    time.sleep(0.05)
`

// Probes that died without a word are placed anew where a process goes on
// speaking TLS and shows nothing.
func TestSilentProbes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page") }))
	defer server.Close()
	mount, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(mount, own, fmt.Sprintf("egressd-probes-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := group.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := group.Kill(5 * time.Second); err != nil {
			t.Error(err)
		}
		dir.Close()
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	p := newProbes(slog.New(slog.DiscardHandler), policy.Scope{Cgroups: []string{group.Path()}})
	p.show = func(*proxy.Shown) bool { return true }
	p.apply(&policy.Policy{TLS: policy.TLS{Mode: policy.Observe, Uprobes: true}})
	if p.sight == nil {
		t.Fatal("there are no probes")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	client := exec.Command("python3", "-c", asks, server.URL[len("https://127.0.0.1:"):])
	client.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = client.Process.Kill()
		_ = client.Wait()
	}()
	pid := uint32(client.Process.Pid)
	within(t, "the client to show what it does", func() bool { return p.Shows(pid) })

	p.mu.Lock()
	for _, f := range p.files {
		f.close(p.log)
		f.closers = nil
	}
	p.mu.Unlock()
	time.Sleep(200 * time.Millisecond) // for what is on its way
	p.mu.Lock()
	clear(p.showing)
	p.mu.Unlock()
	time.Sleep(300 * time.Millisecond)
	if p.Shows(pid) {
		t.Fatal("the probes did not die")
	}
	flows := func() []proxy.FlowInfo {
		return []proxy.FlowInfo{{Flow: policy.Flow{PID: pid}, Sight: policy.SightBlind, Observable: true, Age: time.Minute}}
	}
	p.recheck(flows, time.Now())
	within(t, "the probes to be back", func() bool { return p.Shows(pid) })
	if p.due([2]uint64{1, 1}, time.Now()) {
		t.Error("a file without probes is looked at anew")
	}
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}
