// SPDX-License-Identifier: Apache-2.0

package redisurl

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text, shown string
		login       Login
	}{
		{"redis://store.example.com", "redis://store.example.com:6379", Login{}},
		{"redis://h:7000/3", "redis://h:7000/3", Login{}},
		{"rediss://user:p%40ss@h", "rediss://h:6379", Login{User: "user", Password: "p@ss"}},
		{"redis://onlypass@h", "redis://h:6379", Login{Password: "onlypass"}},
		{"redis://:pw@[::1]:7000", "redis://[::1]:7000", Login{Password: "pw"}},
		{"redis://:pw@[::1]", "redis://[::1]:6379", Login{Password: "pw"}},
		{"redis://u:a@b@h", "redis://h:6379", Login{User: "u", Password: "a@b"}},
		{"redis-sentinel://a,b:5/mymaster/2", "redis-sentinel://a:26379,b:5/mymaster/2", Login{}},
		{"rediss-sentinel://u:p@a/m?sentinel_user=x&sentinel_password=y", "rediss-sentinel://a:26379/m", Login{"u", "p", "x", "y"}},
		{"redis-cluster://a,b:7,c", "redis-cluster://a:6379,b:7,c:6379", Login{}},
		{"rediss-cluster://:p@a?ca=/x&cert=/c&key=/k&server_name=n", "rediss-cluster://a:6379", Login{Password: "p"}},
		{"redis-unix://:p@/run/redis.sock?db=4", "redis-unix:///run/redis.sock?db=4", Login{Password: "p"}},
	} {
		u, err := Parse(tc.text)
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
		} else if u.String() != tc.shown || u.login() != tc.login {
			t.Errorf("%s: got %s, %+v; want %s, %+v", tc.text, u, u.login(), tc.shown, tc.login)
		} else if again, err := Parse(u.String()); err != nil || again.String() != u.String() {
			t.Errorf("%s: what is shown reads as %s, %v", tc.text, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "begins with none",
		"http://h":                         "begins with none",
		"redis:h":                          "begins with none",
		"redis://":                         "HOST:PORT",
		"redis://h:0":                      "port",
		"redis://h:70000":                  "port",
		"redis://h:x":                      "port",
		"redis://::1":                      "HOST:PORT",
		"redis://[::1":                     "IPV6",
		"redis://[1.2.3.4]":                "IPV6",
		"redis://[::1]x":                   "IPV6",
		"redis://a,b":                      "several",
		"redis://h/x":                      "database",
		"redis://h/70000":                  "database",
		"redis://h?x=y":                    "options are",
		"redis://h?ca=/x":                  "TLS",
		"rediss://h?cert=/x":               "together",
		"rediss://h?ca":                    "NAME=VALUE",
		"redis://u:%zz@h":                  "percent",
		"redis://h#x":                      "escaped",
		"redis://h /":                      "escaped",
		"redis-sentinel://h":               "master",
		"redis-sentinel://h/m/x":           "database",
		"redis://h?sentinel_password=x":    "redis-sentinel",
		"redis-cluster://h/1":              "cluster",
		"redis-unix://h/run/redis.sock":    "socket",
		"redis-unix://":                    "socket",
		"redis-unix:///run/s?db=x":         "database",
		"redis://user:hunter2/x@h:6379":    "port",
		"redis://hunter2/x@h:6379":         "database",
		"redis-sentinel://hunter2/x@h/m":   "master",
		"redis://u:12/hunter2@h":           "database",
		"redis://u:12?hunter2@h":           "NAME=VALUE",
		"redis-sentinel://u:12?hunter2=@h": "options are",
	} {
		u, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v; want an error with %q", text, u, err, want)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes it: %v", text, err)
		}
	}
}

// shown is every way in which a value gets into a text.
func shown(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&b, verb+"\n", v)
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(encoded)
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "value", v)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "value", v)
	return b.String()
}

func TestURLIsShownWithoutSecrets(t *testing.T) {
	u, err := Parse("rediss-sentinel://someuser:hunter2@h/m?sentinel_password=hunter3&sentinel_user=other&ca=/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{u, &u, struct{ U URL }{u}, struct{ u URL }{u}, []URL{u}, map[string]URL{"a": u}} {
		text := shown(t, v)
		for _, secret := range []string{"hunter", "someuser", "other", "68756e746572"} {
			if strings.Contains(text, secret) {
				t.Errorf("%T shows %s: %s", v, secret, text)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"redis://u:p@h:1/2", "rediss-sentinel://a,b:5/m/2?sentinel_password=x", "redis-cluster://[::1]:7", "redis-unix:///a?db=1", "redis://a:b/c@d",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := Parse(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || u.String() != "" {
				t.Errorf("%q: error %q, URL %v", text, err, u)
			}
			return
		}
		again, err := Parse(u.String())
		if err != nil || again.String() != u.String() {
			t.Errorf("%q is shown as %q, which reads as %q, %v", text, u, again, err)
		}
		for _, addr := range u.Addrs {
			if addr == "" || strings.ContainsAny(addr, "@ \n,") && u.Mode != Socket {
				t.Errorf("%q: server %q", text, addr)
			}
		}
	})
}

// FuzzURLSecrets puts a secret where secrets stand, whole or badly escaped.
func FuzzURLSecrets(f *testing.F) {
	f.Add("redis", "Sup3rSecret", "h:6379/0")
	f.Add("rediss-sentinel", "/Sup3rSecret", "h/m?sentinel_user=u")
	f.Add("redis-cluster", "Sup3r?Secret", "a,b")
	f.Add("redis", "Sup3r%Secret#", "[::1]:1")
	f.Fuzz(func(t *testing.T, scheme, extra, rest string) {
		const secret = "Sup3rSecret"
		if strings.ContainsAny(extra, "@") || strings.Contains(scheme, secret) || strings.Contains(rest, secret) {
			return
		}
		u, err := Parse(scheme + "://user:" + secret + extra + "@" + rest)
		text := fmt.Sprint(u)
		if err != nil {
			text = err.Error()
		}
		if strings.Contains(text, secret) {
			t.Errorf("%s shows the secret", text)
		}
	})
}
