// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestVerdictCases feeds each case of the verdict package through the command.
func TestVerdictCases(t *testing.T) {
	const file = "../../policy/verdict/testdata/verdict.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Cases []struct {
			Name    string
			Status  int
			Connect bool
			Headers [][2]string
			At      time.Time
			Expect  map[string]any
		}
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	if len(cases.Cases) == 0 {
		t.Fatalf("%s holds no cases", file)
	}
	for _, c := range cases.Cases {
		t.Run(c.Name, func(t *testing.T) {
			var head strings.Builder
			fmt.Fprintf(&head, "HTTP/1.1 %d Some Reason\r\n", c.Status)
			for _, f := range c.Headers {
				fmt.Fprintf(&head, "%s: %s\r\n", f[0], f[1])
			}
			head.WriteString("\r\nbody")
			args := []string{"verdict", "--at", c.At.Format(time.RFC3339)}
			if c.Connect {
				args = append(args, "--connect")
			}
			var stdout, stderr bytes.Buffer
			e := &env{stdin: strings.NewReader(head.String()), stdout: &stdout, stderr: &stderr}
			if status := run(t.Context(), e, args); status != 0 || stderr.Len() > 0 {
				t.Fatalf("got status %d, %s", status, &stderr)
			}
			var got map[string]any
			if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"kind", "delay_ms", "limit", "remaining", "reset_ms", "window_ms", "rate_per_s", "dialect"} {
				if _, ok := got[key]; !ok {
					t.Errorf("%s is missing", key)
				}
			}
			for key, want := range c.Expect {
				if got[key] != want {
					t.Errorf("%s: got %v, want %v", key, got[key], want)
				}
			}
		})
	}
}

func TestVerdictReadError(t *testing.T) {
	var stdout, stderr bytes.Buffer
	e := &env{stdin: iotest.ErrReader(errors.New("broken pipe")), stdout: &stdout, stderr: &stderr}
	if got := run(t.Context(), e, []string{"verdict"}); got != 1 || stderr.String() != "egressd: read standard input: broken pipe\n" || stdout.Len() > 0 {
		t.Errorf("got status %d, %q and %q", got, &stdout, &stderr)
	}
}

func TestSplitHost(t *testing.T) {
	for _, c := range []struct {
		in, host string
		port     uint16
	}{
		{"api.example.com", "api.example.com", 0},
		{"API.Example.com.", "api.example.com", 0},
		{"api.example.com:8443", "api.example.com", 8443},
		{"a_b-c", "a_b-c", 0},
		{"192.0.2.1", "192.0.2.1", 0},
		{"192.0.2.1:80", "192.0.2.1", 80},
		{"::ffff:192.0.2.1", "192.0.2.1", 0},
		{"2001:DB8::1", "2001:db8::1", 0},
		{"[2001:db8::1]", "2001:db8::1", 0},
		{"[2001:db8::1]:443", "2001:db8::1", 443},
		{"", "", 0},
		{".", "", 0},
		{"a..b", "", 0},
		{".a", "", 0},
		{"*.example.com", "", 0},
		{"https://example.com", "", 0},
		{"example.com/x", "", 0},
		{"example.com:", "", 0},
		{"example.com:0", "", 0},
		{"example.com:65536", "", 0},
		{"bücher.example", "", 0},
		{"fe80::1%eth0", "", 0},
		{strings.Repeat("a", 254), "", 0},
	} {
		host, port, ok := splitHost(c.in)
		if ok != (c.host != "") || ok && (host != c.host || port != c.port) {
			t.Errorf("%q: got %q, %d, %v; want %q, %d", c.in, host, port, ok, c.host, c.port)
		}
	}
}

func TestBudgetFor(t *testing.T) {
	p := &policy.Policy{Budgets: []*policy.Budget{
		{Name: "idle", Mode: policy.Off},
		{Name: "alternative", Match: policy.Match{Hosts: []policy.HostPattern{{Name: "a.example"}}, Ports: []uint16{8443}}},
		{Name: "a", Match: policy.Match{Hosts: []policy.HostPattern{{Name: "b.example"}, {Name: "a.example"}}, Ports: []uint16{80, 443}}},
		{Name: "below", Match: policy.Match{Hosts: []policy.HostPattern{{Suffix: ".a.example"}}}},
	}}
	for _, c := range []struct {
		host string
		port uint16
		want string
	}{
		{"a.example", 0, "alternative"},
		{"a.example", 443, "a"},
		{"a.example", 22, ""},
		{"b.example", 0, "a"},
		{"x.a.example", 22, "below"},
		{"xa.example", 0, ""},
		{"192.0.2.1", 0, ""},
	} {
		got := ""
		if b := budgetFor(p, c.host, c.port); b != nil {
			got = b.Name
		}
		if got != c.want {
			t.Errorf("%s:%d: got %q, want %q", c.host, c.port, got, c.want)
		}
	}
}
