// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

var update = flag.Bool("update", false, "rewrite golden files")

const example = "../../scripts/egressd.example.yml"

func mustParse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := Parse("egressd.yml", []byte(text))
	if err != nil {
		t.Fatalf("parse:\n%s\n%v", text, err)
	}
	return p
}

// Every *.bad.yml says at the end of its lines, after "#!", which errors they
// must give; they and no others are expected, word for word.
func TestBad(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want Errors
			for i, line := range strings.Split(string(text), "\n") {
				for _, msg := range strings.Split(line, " #! ")[1:] {
					want = append(want, Error{File: name, Line: i + 1, Msg: msg})
				}
			}
			if len(want) == 0 {
				t.Fatal("the file expects no error")
			}
			p, err := Parse(name, text)
			if p != nil {
				t.Error("there is a policy beside the errors")
			}
			var got Errors
			if !errors.As(err, &got) {
				t.Fatalf("got error %v of type %T, want Errors", err, err)
			}
			if got.Error() != want.Error() {
				t.Errorf("got:\n%v\nwant:\n%v", got, want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Run("missing file", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "none.yml")
		p, err := Load(name)
		if p != nil || !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("got %v, %v; want no policy and fs.ErrNotExist", p, err)
		}
		if want := "read policy: open " + name + ": no such file or directory"; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	})
	t.Run("errors name the path", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "bad.yml")
		if err := os.WriteFile(name, []byte("quic: deny\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(name)
		if want := name + `:1: quic: must be allow or refuse, not "deny"`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %v", err, want)
		}
	})
}

// The shipped example is what newcomers start from: it must parse, to what it
// says. After a change that is meant, go test -update rewrites the golden file.
func TestExample(t *testing.T) {
	p, err := Load(example)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(struct {
		Policy   *policy.Policy
		Describe []string
	}{p, Describe(p)}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "testdata/example.golden.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestDefaults(t *testing.T) {
	t.Run("of the policy", func(t *testing.T) {
		want := &policy.Policy{
			Scope:   policy.Scope{Cgroups: []string{"/"}},
			Metrics: policy.Metrics{Listen: "127.0.0.1:9477"},
			Events:  policy.Events{Log: "auto"},
			Admin:   policy.Admin{Socket: "/run/egressd/egressd.sock"},
			TLS:     policy.TLS{KeyLog: true, Uprobes: true, KeyDir: "/run/egressd/keys", CADir: "/var/lib/egressd/ca"},
		}
		if got := Default(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := mustParse(t, "quic: allow"); !reflect.DeepEqual(got, want) {
			t.Errorf("parsed: got %+v, want %+v", got, want)
		}
	})
	t.Run("of a budget", func(t *testing.T) {
		got := mustParse(t, "budgets: [{rate: 1/s}]").Budgets
		want := []*policy.Budget{{
			Name:     "budget-1",
			Match:    policy.Match{Ports: []uint16{80, 443}},
			Per:      policy.PerDestination | policy.PerExit,
			Rate:     policy.Rate{Count: 1, Every: time.Second},
			Burst:    1,
			Cost:     policy.Cost{Units: 1},
			Unit:     policy.Requests,
			Queue:    policy.Queue{Max: 1000, MaxWait: 30 * time.Second},
			OnFull:   policy.Refuse,
			Cooldown: policy.Cooldown{Default: time.Second, Max: 24 * time.Hour, Spread: 0.1, Statuses: []int{429}},
			Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
			Mode:     policy.Enforce,
			Retry:    policy.Retry{Attempts: 3, MaxBody: 1 << 20, Statuses: []int{503}},
			Flights:  true,
		}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got[0], want[0])
		}
	})
}

// Every key that does something, with a value other than the default.
func TestEveryKey(t *testing.T) {
	got := mustParse(t, `
scope:
  cgroups: [user.slice, /system.slice/crawler.service/]
  exclude: [system.slice/ssh.service]
exits:
  - {name: wg0, interface: wg0}
  - {name: alias-2, source: "::ffff:203.0.113.7"}
  - {name: marked, mark: 0x2a}
budgets:
  - rate: 2/s
  - name: store
    match:
      hosts: [Store.Example.COM., "*.store.example.com", "*", "[2001:DB8::1]", "::1", 203.0.113.7, 203.0.113.9/24, "::ffff:10.0.0.0/104", "[2001:db8::/33]"]
      ports: [8080]
      path: /api/
      methods: [GET, M-SEARCH]
    per: []
    rate: 90/min
    burst: 2.5
    unit: requests
    queue: {max: 0, max_wait: 0s, fair_by: uid}
    on_full: drop
    cooldown: {default: 250ms, max: 1h30m, spread: 25%, statuses: [429, 999]}
    recovery: {factor: 1, step: 1}
    retry: {absorb: true, attempts: 10, max_body: 16MiB, statuses: []}
    window: {limit: 100, per: 1m, kind: fixed}
    concurrency: 4
    cost: {units: 7, header: X-Request-Cost}
    headers: auto
    tls: {mode: terminate, pace: connections}
    mode: shadow
    fail: closed
  - {name: third, rate: 10/30s, unit: connections, per: [exit], mode: off, headers: off, cooldown: {max: 500ms, spread: 0.25}}
  - {start: 5/min, rate: auto, burst: 0.5, cost: 2, per: [session, path], retry: {absorb: false, max_body: 2kB}}
tls: {mode: observe, pace: connections, sources: [keylog], key_dir: /dev/shm/keys/, ca: /srv/ca, roots: /etc/roots.pem}
quic: refuse
metrics: {listen: off, web_config_file: /etc/egressd//web.yml}
events: {log: /var/log/egressd.jsonl}
admin: {socket: /tmp/x.sock}
`)
	base := func(name string, rate policy.Rate) *policy.Budget {
		b := defaultBudget()
		b.Name, b.Rate = name, rate
		b.TLS, b.Flights = policy.Observe, false // as the section tls says
		return b
	}
	store := &policy.Budget{
		Name: "store",
		Match: policy.Match{
			Hosts: []policy.HostPattern{
				{Name: "store.example.com"},
				{Suffix: ".store.example.com"},
				{Any: true},
				{Name: "2001:db8::1"},
				{Name: "::1"},
				{Name: "203.0.113.7"},
				{Prefix: netip.MustParsePrefix("203.0.113.0/24")},
				{Prefix: netip.MustParsePrefix("10.0.0.0/8")},
				{Prefix: netip.MustParsePrefix("2001:db8::/33")},
			},
			Ports:      []uint16{8080},
			PortsNamed: true,
			Path:       "/api/",
			Methods:    []string{"GET", "M-SEARCH"},
		},
		Rate:        policy.Rate{Count: 90, Every: time.Minute},
		Burst:       2.5,
		Window:      policy.Window{Limit: 100, Per: time.Minute, Kind: policy.Fixed},
		Concurrency: 4,
		Cost:        policy.Cost{Units: 7, Header: "x-request-cost"},
		Queue:       policy.Queue{FairBy: policy.FairUID},
		OnFull:      policy.Drop,
		Cooldown:    policy.Cooldown{Default: 250 * time.Millisecond, Max: 90 * time.Minute, Spread: 0.25, Statuses: []int{429, 999}},
		Recovery:    policy.Recovery{Factor: 1, Step: 1},
		Mode:        policy.Shadow,
		FailClosed:  true,
		Retry:       policy.Retry{Absorb: true, Attempts: 10, MaxBody: 16 << 20},
		TLS:         policy.Terminate,
	}
	third := base("third", policy.Rate{Count: 10, Every: 30 * time.Second})
	third.Unit, third.Per, third.Mode, third.HeadersOff = policy.Connections, policy.PerExit, policy.Off, true
	third.Cooldown.Default, third.Cooldown.Max, third.Cooldown.Spread = 500*time.Millisecond, 500*time.Millisecond, 0.25
	auto := base("budget-4", policy.Rate{Count: 5, Every: time.Minute})
	auto.Auto, auto.Burst, auto.Cost.Units, auto.Per, auto.Retry.MaxBody = true, 0.5, 2, policy.PerSession|policy.PerPath, 2000
	want := &policy.Policy{
		Scope: policy.Scope{
			Cgroups: []string{"/user.slice", "/system.slice/crawler.service"},
			Exclude: []string{"/system.slice/ssh.service"},
		},
		Exits: []policy.Exit{
			{Name: "wg0", Interface: "wg0"},
			{Name: "alias-2", Source: netip.MustParseAddr("203.0.113.7")},
			{Name: "marked", Mark: 0x2a},
		},
		Budgets: []*policy.Budget{base("budget-1", policy.Rate{Count: 2, Every: time.Second}), store, third, auto},
		Metrics: policy.Metrics{WebConfigFile: "/etc/egressd/web.yml"},
		Events:  policy.Events{Log: "/var/log/egressd.jsonl"},
		Admin:   policy.Admin{Socket: "/tmp/x.sock"},
		TLS: policy.TLS{
			Mode: policy.Observe, KeyLog: true,
			KeyDir: "/dev/shm/keys", CADir: "/srv/ca", Roots: "/etc/roots.pem",
		},
		QUIC: policy.QUICRefuse,
	}
	for i := range want.Budgets {
		if i < len(got.Budgets) && !reflect.DeepEqual(got.Budgets[i], want.Budgets[i]) {
			t.Errorf("budgets[%d]: got %+v, want %+v", i, got.Budgets[i], want.Budgets[i])
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestListen(t *testing.T) {
	for _, c := range []struct{ listen, want string }{
		{`127.0.0.1:9477`, "127.0.0.1:9477"},
		{`"[::1]:9477"`, "[::1]:9477"},
		{`":9477"`, ":9477"},
		{`localhost:0`, "localhost:0"},
		{`""`, ""},
		{`off`, ""},
	} {
		if got := mustParse(t, "metrics: {listen: "+c.listen+"}").Metrics.Listen; got != c.want {
			t.Errorf("listen %s: got %q, want %q", c.listen, got, c.want)
		}
	}
	for _, bad := range []string{"127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http", "256.0.0.1:80", "::1:9477", "a..b:1", ":1a"} {
		_, err := Parse("f", []byte(`metrics: {listen: "`+bad+`"}`))
		want := `f:1: metrics.listen: "` + bad + `" is no host:port; write it as 127.0.0.1:9477, or off for none`
		if err == nil || err.Error() != want {
			t.Errorf("listen %s: got %v, want %s", bad, err, want)
		}
	}
}

func TestFilesOfMetricsAndEvents(t *testing.T) {
	for text, want := range map[string]string{"auto": "auto", "off": "off", "stderr": "stderr", "journald": "journald", "/var/log/a/../b": "/var/log/b"} {
		if got := mustParse(t, "events: {log: "+text+"}").Events.Log; got != want {
			t.Errorf("events.log %s: got %q, want %q", text, got, want)
		}
	}
	if got := mustParse(t, `metrics: {web_config_file: ""}`).Metrics.WebConfigFile; got != "" {
		t.Errorf("web_config_file: got %q, want none", got)
	}
	for text, want := range map[string]string{
		"events: {log: events.jsonl}":         `events.log: "events.jsonl" is no absolute file name; write it as /var/log/egressd/events.jsonl, or auto, off, stderr or journald`,
		"events: {log: /var/log/}":            `events.log: "/var/log/" is no absolute file name; write it as /var/log/egressd/events.jsonl, or auto, off, stderr or journald`,
		`events: {log: "/a\nb"}`:              `events.log: "/a\nb" is no absolute file name; write it as /var/log/egressd/events.jsonl, or auto, off, stderr or journald`,
		"metrics: {web_config_file: web.yml}": `metrics.web_config_file: "web.yml" is no absolute file name; write it as /etc/egressd/web.yml`,
	} {
		if _, err := Parse("f", []byte(text)); err == nil || err.Error() != "f:1: "+want {
			t.Errorf("%s: got %v, want f:1: %s", text, err, want)
		}
	}
}

// Beyond the size where the line is searched for, the YAML package's stands.
func TestSyntaxErrorInALargeFile(t *testing.T) {
	text := "budgets:\n" + strings.Repeat("  - rate: 1/s\n", 20_000) + "  - rate: \"1/s\n"
	_, err := Parse("f", []byte(text))
	if want := "f:20002: not valid YAML: found unexpected end of stream"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestSocket(t *testing.T) {
	for text, want := range map[string]string{"off": "", `""`: "", "/run/../tmp//x.sock": "/tmp/x.sock"} {
		if got := mustParse(t, "admin: {socket: "+text+"}").Admin.Socket; got != want {
			t.Errorf("socket %s: got %q, want %q", text, got, want)
		}
	}
}

func TestRates(t *testing.T) {
	for _, c := range []struct {
		text string
		want policy.Rate
	}{
		{"1/s", policy.Rate{Count: 1, Every: time.Second}},
		{"90/min", policy.Rate{Count: 90, Every: time.Minute}},
		{"90/m", policy.Rate{Count: 90, Every: time.Minute}},
		{"0.0056/s", policy.Rate{Count: 0.0056, Every: time.Second}},
		{"5000/h", policy.Rate{Count: 5000, Every: time.Hour}},
		{"1/d", policy.Rate{Count: 1, Every: 24 * time.Hour}},
		{"10/10s", policy.Rate{Count: 10, Every: 10 * time.Second}},
		{"1000000/s", policy.Rate{Count: 1e6, Every: time.Second}},
		{"1/30d", policy.Rate{Count: 1, Every: 30 * 24 * time.Hour}},
	} {
		got, err := parseRate(c.text)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
}
