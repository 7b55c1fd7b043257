// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// zeros joins what the kernel shows with a zero behind each.
func zeros(all ...string) []byte {
	if len(all) == 0 {
		return nil
	}
	return []byte(strings.Join(all, "\x00") + "\x00")
}

func TestAsked(t *testing.T) {
	const log = "SSLKEYLOGFILE=/run/keys/a"
	for _, c := range []struct {
		name    string
		environ []byte
		cmdline []byte
		want    string
	}{
		{"nothing", nil, nil, ""},
		{"nothing of the kind", zeros("HOME=/root", "XSSLKEYLOGFILE=/x"), zeros("curl", "https://a.example/"), ""},
		{"by the variable", zeros("HOME=/root", log), zeros("/usr/bin/curl", "-s"), "/run/keys/a"},
		{"no zero at the end", []byte(log), []byte("curl"), "/run/keys/a"},
		{"an empty variable", zeros("SSLKEYLOGFILE="), zeros("curl"), ""},
		{"twice", zeros(log, "SSLKEYLOGFILE=/b"), zeros("curl"), "/run/keys/a"},
		{"in the value of another", zeros("X=1 " + log), zeros("curl"), ""},
		{"Node does not look at it", zeros(log), zeros("node", "a.js"), ""},
		{"Node by its options", zeros(log, "NODE_OPTIONS=--max-http-header-size=9 --tls-keylog=/run/keys/n"), zeros("/usr/bin/node", "a.js"), "/run/keys/n"},
		{"Node by two words", zeros("NODE_OPTIONS=--tls-keylog /run/keys/n"), zeros("nodejs"), "/run/keys/n"},
		{"Node, quoted", zeros(`NODE_OPTIONS="--tls-keylog=/run/my \"keys\\" --x`), zeros("node"), `/run/my "keys\`},
		{"Node by its command line", zeros("NODE_OPTIONS=--tls-keylog=/n"), zeros("node", "--tls-keylog=/c", "a.js"), "/c"},
		{"Node by its command line in two words", nil, zeros("node", "--tls-keylog", "/c"), "/c"},
		{"an option of the script", nil, zeros("node", "a.js", "--tls-keylog=/c"), ""},
		{"others do not look at Node's", zeros("NODE_OPTIONS=--tls-keylog=/n"), zeros("curl"), ""},
		{"Chromium", zeros(log), zeros("/usr/lib/chromium/chromium", "--headless", "--ssl-key-log-file=/c", "https://a.example/"), "/c"},
		{"Python", zeros(log), zeros("python3", "-u", "-W", "-I", "a.py", "-E"), "/run/keys/a"},
		{"Python on its own", zeros(log), zeros("/usr/bin/python3.11", "-uI", "a.py"), ""},
		{"Python without an environment", zeros(log), zeros("python", "-X", "dev", "-E", "a.py"), ""},
		{"Python with a command", zeros(log), zeros("python3", "-c", "-E", "-I"), "/run/keys/a"},
		{"Python with a module", zeros(log), zeros("python3", "-m", "x", "-I"), "/run/keys/a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := Asked(c.environ, c.cmdline)
			if got != c.want || ok != (c.want != "") {
				t.Errorf("got %q, %v; want %q", got, ok, c.want)
			}
		})
	}
}

func TestExpects(t *testing.T) {
	for dir, want := range map[string]bool{"/run/keys": true, "/run/keys/": true, "/run": false, "/run/key": false, "/run/keys/a": false, "": false} {
		if got := Expects(zeros("SSLKEYLOGFILE=/run/keys/a"), zeros("curl"), dir); got != want {
			t.Errorf("%q: got %v, want %v", dir, got, want)
		}
	}
	if Expects(zeros("SSLKEYLOGFILE=a"), zeros("curl"), "/run/keys") || Expects(nil, nil, "/run/keys") {
		t.Error("a log elsewhere is taken for ours")
	}
}

// Node itself says how it splits its options.
func TestNodeOptionsAreThoseOfNode(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed")
	}
	for _, options := range []string{
		"--title=a", `--title="a b"`, `"--title=a b"`, `--title="a\"b\\c"`, `--title=a\b`, `--title=a --title=b`, `--title "a  b"`, `  --title=x  `, `--title="a"b`,
	} {
		cmd := exec.Command("node", "-p", "process.title")
		cmd.Env = append(os.Environ(), "NODE_OPTIONS="+options)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", options, err, out)
			continue
		}
		want := strings.TrimSuffix(string(out), "\n")
		got, _ := NodeKeyLog(strings.ReplaceAll(options, "--title", NodeOption))
		if want == "node" { // its own, where the option gives none
			want = ""
		}
		if got != want {
			t.Errorf("%s: got %q, node says %q", options, got, want)
		}
	}
}

func TestLogs(t *testing.T) {
	var p Processes
	start := func(env ...string) int {
		t.Helper()
		cmd := exec.Command("sleep", "60")
		cmd.Env = env
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd.Process.Pid
	}
	with := start("A=b", "SSLKEYLOGFILE=/run/keys/a")
	without := start("A=b")
	for range 2 { // the second time from memory
		if path, ok := p.Logs(with); path != "/run/keys/a" || !ok {
			t.Errorf("got %q, %v", path, ok)
		}
		if path, ok := p.Logs(without); path != "" || ok {
			t.Errorf("got %q, %v of a process that was not asked", path, ok)
		}
	}
	if n := len(p.known); n != 2 {
		t.Errorf("%d processes are remembered, want 2", n)
	}
	if path, ok := Logs(with); path != "/run/keys/a" || !ok {
		t.Errorf("got %q, %v", path, ok)
	}
	if _, ok := p.Logs(1 << 30); ok {
		t.Error("a process that is not there logs")
	}
	if _, ok := Logs(-1); ok {
		t.Error("a process that is not there logs")
	}
}

// The name of a program may look like the end of its own field.
func TestStartTime(t *testing.T) {
	dir := mustTemp(t)
	name := dir + "/) R 1 (x"
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o755); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, program := range []string{name, sleep} {
		cmd := exec.Command(program, "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		pids = append(pids, cmd.Process.Pid)
	}
	odd, err := startTime(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	plain, err := startTime(pids[1])
	if err != nil {
		t.Fatal(err)
	}
	// Started one after the other, within the same minute of 100 ticks a second.
	if len(odd) != len(plain) || odd > plain {
		t.Errorf("got %s and then %s", odd, plain)
	}
}

func FuzzAsked(f *testing.F) {
	f.Add([]byte("SSLKEYLOGFILE=/a\x00"), []byte("curl\x00x\x00"))
	f.Add([]byte(`NODE_OPTIONS="--tls-keylog=\"a`), []byte("node\x00--tls-keylog\x00"))
	f.Add([]byte("SSLKEYLOGFILE=/a"), []byte("python3\x00-\x00-W"))
	f.Fuzz(func(t *testing.T, environ, cmdline []byte) {
		path, ok := Asked(environ, cmdline)
		if ok != (path != "") {
			t.Errorf("got %q, %v", path, ok)
		}
		if len(path) > len(environ)+len(cmdline) {
			t.Errorf("path %q is longer than all there is", path)
		}
	})
}
