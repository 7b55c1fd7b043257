// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// client is a program that asks for something.
type client struct {
	name   string
	probe  func(t testing.TB) []string // files
	codes  []int
	run    func(o *origin) []string // command
	random bool                     // its client random is seen
}

func openssl(t testing.TB, program string) []string {
	return []string{libraryOf(t, program, "libssl"), libraryOf(t, program, "libcrypto")}
}

func urls(o *origin, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("https://127.0.0.1:%d/%d", o.port, i))
	}
	return list
}

// pythons are the interpreter of the system and, if there are others (pyenv),
// the oldest and the newest of them that the scripts run with: versions differ
// in the functions that they call.
func pythons(t testing.TB) []string {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]int{}
	others := slices.DeleteFunc(all, func(path string) bool {
		out, err := exec.Command(path, "-c", "import _ssl, sys; print(sys.version_info[1], end='')").Output()
		versions[path], _ = strconv.Atoi(string(out))
		return err != nil || versions[path] < 8
	})
	slices.SortFunc(others, func(a, b string) int { return versions[a] - versions[b] })
	if len(others) > 2 {
		others = []string{others[0], others[len(others)-1]}
	}
	return append([]string{need(t, python)}, others...)
}

// versionOf names an interpreter without slashes.
func versionOf(python string) string {
	return strings.Trim(strings.ReplaceAll(strings.TrimSuffix(python, "/bin/python3"), "/", " "), " ")
}

// sslOfPython are the libraries of an interpreter.
func sslOfPython(t testing.TB, python string) []string {
	t.Helper()
	out, err := exec.Command(python, "-c", "import _ssl; print(_ssl.__file__, end='')").Output()
	if err != nil {
		t.Fatalf("%s has no ssl: %v", python, err)
	}
	return openssl(t, string(out))
}

func TestClients(t *testing.T) {
	numbers := func(n ...int) []string {
		var s []string
		for _, n := range n {
			s = append(s, strconv.Itoa(n))
		}
		return s
	}
	var clients []client
	add := func(c client) { clients = append(clients, c) }
	for _, version := range []string{"--http1.1", "--http2"} {
		add(client{
			name:  "curl" + version,
			probe: func(t testing.TB) []string { return openssl(t, libraryOf(t, need(t, "curl"), "libcurl")) },
			run: func(o *origin) []string {
				return append([]string{need(t, "curl"), "-sk", version, "-o", "/dev/null"}, urls(o, 5)...)
			},
			random: true,
		})
	}
	for _, python := range pythons(t) {
		probe := func(t testing.TB) []string { return sslOfPython(t, python) }
		for script, args := range map[string]func(o *origin) []string{
			"blocking.py": func(o *origin) []string { return numbers(o.port, 5, 10) },
			"aio.py":      func(o *origin) []string { return numbers(o.port, 0, 50, 20) },
			"callback.py": func(o *origin) []string { return numbers(o.port, 5, 10) },
			"hop.py":      func(o *origin) []string { return numbers(o.port, 10, 20) },
		} {
			add(client{
				name: versionOf(python) + " " + script, probe: probe, random: true,
				run: func(o *origin) []string {
					return append([]string{python, filepath.Join("testdata", script)}, args(o)...)
				},
			})
		}
		add(client{
			name: versionOf(python) + " aio.py, mixed", probe: probe, random: true,
			run: func(o *origin) []string {
				return append([]string{python, "testdata/aio.py"}, numbers(o.port, o.plain, 300, 2)...)
			},
		})
	}
	for _, lib := range []string{"requests", "httpx", "aiohttp"} {
		if exec.Command(python, "-c", "import "+lib).Run() != nil {
			t.Logf("python3 has no %s", lib)
			continue
		}
		add(client{
			name: lib, random: true,
			probe: func(t testing.TB) []string { return sslOfPython(t, python) },
			run: func(o *origin) []string {
				return append([]string{python, "testdata/lib.py", lib}, numbers(o.port, 5, 10)...)
			},
		})
	}
	if node, err := exec.LookPath("node"); err == nil {
		for mode, n := range map[string][2]int{"https": {10, 20}, "fetch": {10, 20}, "http2": {5, 20}, "short": {20, 20}} {
			add(client{
				name: "node " + mode, random: true,
				probe: func(t testing.TB) []string { return []string{need(t, node)} },
				run: func(o *origin) []string {
					return append([]string{node, "testdata/node.mjs", mode}, numbers(o.port, o.plain, n[0], n[1])...)
				},
			})
		}
	}
	add(client{
		name:  "wget",
		codes: []int{8}, // the answers are errors
		probe: func(t testing.TB) []string { return []string{libraryOf(t, need(t, "wget"), "libgnutls")} },
		run: func(o *origin) []string {
			return append([]string{need(t, "wget"), "-q", "--no-check-certificate", "-t1", "-O/dev/null"}, urls(o, 5)...)
		},
	})
	for _, build := range []struct {
		name  string
		flags []string
	}{{"plain", nil}, {"stripped", []string{"-ldflags=-s -w"}}, {"pie", []string{"-buildmode=pie"}}} {
		program := buildGo(t, build.flags...)
		for mode, n := range map[string][2]int{"h1": {20, 20}, "h2": {20, 20}, "raw": {2, 400}} {
			add(client{
				name:  "go " + build.name + " " + mode,
				probe: func(testing.TB) []string { return []string{program} },
				run: func(o *origin) []string {
					return append([]string{program, mode}, numbers(o.port, n[0], n[1])...)
				},
			})
		}
	}

	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			o := newOrigin(t)
			r := newRig(t)
			r.probe(c.probe(t)...)
			if c.codes == nil {
				c.codes = []int{0}
			}
			command := c.run(o)
			r.run(c.codes, command[0], command[1:]...)
			events := r.settle()
			m := judge(t, o, events)
			want := score{right: o.answers()}
			t.Logf("%d answers: %+v; %+v", o.answers(), m, r.counts())
			if m.requests != want {
				t.Errorf("requests: got %+v, want %+v", m.requests, want)
			}
			if m.responses != want {
				t.Errorf("responses: got %+v, want %+v", m.responses, want)
			}
			if m.randoms.wrong != 0 || c.random && m.randoms.right == 0 {
				t.Errorf("client randoms: got %+v", m.randoms)
			}
			if n := r.counts(); n.Lost+n.Missed+n.Crowded+n.Unread != 0 {
				t.Errorf("counts: got %+v", n)
			}
		})
	}
}

// buildGo builds the client in testdata.
func buildGo(t testing.TB, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "goclient")
	cmd := exec.Command("go", append(append([]string{"build", "-o", program}, flags...), "./testdata/goclient")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return program
}
