// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkCalls measures a write and a read of a TLS library in memory, as
// Python makes them: bare, with the probes and the process out of scope, and
// seen. Compare the rows: a trap costs more in a nested guest than on metal.
func BenchmarkCalls(b *testing.B) {
	cert, key := pemFiles(b)
	for _, size := range []int{1, 16384} {
		for _, how := range []string{"bare", "out of scope", "seen"} {
			b.Run(fmt.Sprintf("%d bytes/%s", size, how), func(b *testing.B) {
				r := newRig(b)
				if how != "bare" {
					r.probe(sslOfPython(b, python)...)
				}
				cmd := r.command(python, "testdata/calls.py", cert, key)
				if how == "out of scope" {
					cmd.SysProcAttr = nil
				}
				in, err := cmd.StdinPipe()
				if err != nil {
					b.Fatal(err)
				}
				out, err := cmd.StdoutPipe()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				defer cmd.Wait()
				defer in.Close()
				lines := bufio.NewReader(out)
				b.ResetTimer()
				fmt.Fprintln(in, size, b.N)
				line, err := lines.ReadString('\n')
				if err != nil {
					b.Fatal(err)
				}
				seconds, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(seconds*1e9/float64(b.N), "ns/pair")
			})
		}
	}
}

// BenchmarkRequests measures requests of a blocking client on one connection,
// and of Go's, and a download, bare and seen. The processor time is that of the
// client; the wall clock also sees whatever else the machine does.
func BenchmarkRequests(b *testing.B) {
	program := buildGo(b)
	curl := need(b, "curl")
	for _, c := range []struct {
		name  string
		files []string
		run   func(o *origin, n int) []string
	}{
		{"python", sslOfPython(b, python), func(o *origin, n int) []string {
			return []string{python, "testdata/blocking.py", strconv.Itoa(o.port), "1", strconv.Itoa(n)}
		}},
		{"go", []string{program}, func(o *origin, n int) []string {
			return []string{program, "h1", strconv.Itoa(o.port), "1", strconv.Itoa(n)}
		}},
		{"go h2", []string{program}, func(o *origin, n int) []string {
			return []string{program, "h2", strconv.Itoa(o.port), "1", strconv.Itoa(n)}
		}},
		{"16 MiB by curl", openssl(b, libraryOf(b, curl, "libcurl")), func(o *origin, n int) []string {
			args := []string{curl, "-sk", "--http1.1"}
			for i := range n {
				args = append(args, "-o", "/dev/null", fmt.Sprintf("https://127.0.0.1:%d/%d?body=%d", o.port, i, 16<<20))
			}
			return args
		}},
	} {
		for _, seen := range []bool{false, true} {
			name := c.name + "/bare"
			if seen {
				name = c.name + "/seen"
			}
			b.Run(name, func(b *testing.B) {
				o, r := newOrigin(b), newRig(b)
				if seen {
					r.probe(c.files...)
				}
				args := c.run(o, b.N)
				cmd := r.command(args[0], args[1:]...)
				cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
				b.ResetTimer()
				if err := cmd.Run(); err != nil {
					b.Fatalf("%s: %v", args[0], err)
				}
				cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
				b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkSockets measures what the tracepoints cost sockets of a process
// that has nothing to do with TLS.
func BenchmarkSockets(b *testing.B) {
	const script = `
import socket, sys, time
a, b = socket.socket(), socket.socket()
a.bind(("127.0.0.1", 0)); a.listen(); b.connect(a.getsockname()); c, _ = a.accept()
n = int(sys.argv[1]); t = time.process_time()
for _ in range(n):
    b.send(b"x"); c.recv(1)
print((time.process_time() - t) * 1e9 / n)
`
	for _, hooks := range []bool{false, true} {
		b.Run(fmt.Sprintf("hooks %t", hooks), func(b *testing.B) {
			if hooks {
				newRig(b)
			}
			out, err := exec.Command(python, "-c", script, strconv.Itoa(b.N)).Output()
			if err != nil {
				b.Fatal(err)
			}
			ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ns, "ns/pair")
		})
	}
}
