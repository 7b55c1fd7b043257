// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func TestParseLimit(t *testing.T) {
	perSecond := policy.Rate{Count: 1, Every: time.Second}
	for _, c := range []struct {
		text  string
		name  string
		host  policy.HostPattern
		port  uint16 // 0: the default ports
		rate  policy.Rate
		burst float64
	}{
		{"store.example.com=1/s", "store.example.com", policy.HostPattern{Name: "store.example.com"}, 0, perSecond, 1},
		{"Store.Example.com:8080=90/min,burst=5", "store.example.com:8080", policy.HostPattern{Name: "store.example.com"}, 8080, policy.Rate{Count: 90, Every: time.Minute}, 5},
		{"*.example.com=1/s", "*.example.com", policy.HostPattern{Suffix: ".example.com"}, 0, perSecond, 1},
		{"*=1/s", "*", policy.HostPattern{Any: true}, 0, perSecond, 1},
		{"*:81=1/s,burst=1.5", "*:81", policy.HostPattern{Any: true}, 81, perSecond, 1.5},
		{"127.0.0.1:8080=1/s", "127.0.0.1:8080", policy.HostPattern{Name: "127.0.0.1"}, 8080, perSecond, 1},
		{"::1=1/s", "::1", policy.HostPattern{Name: "::1"}, 0, perSecond, 1},
		{"[::1]=1/s", "[::1]", policy.HostPattern{Name: "::1"}, 0, perSecond, 1},
		{"[2001:DB8::0:1]:443=1/s", "[2001:db8::0:1]:443", policy.HostPattern{Name: "2001:db8::1"}, 443, perSecond, 1},
		{"::ffff:203.0.113.7=1/s", "::ffff:203.0.113.7", policy.HostPattern{Name: "203.0.113.7"}, 0, perSecond, 1},
		{"203.0.113.0/24=1/s", "203.0.113.0_24", policy.HostPattern{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, 0, perSecond, 1},
		{"203.0.113.9/24:22=1/s", "203.0.113.9_24:22", policy.HostPattern{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, 22, perSecond, 1},
		{"2001:db8::/32=1/s", "2001:db8::_32", policy.HostPattern{Prefix: netip.MustParsePrefix("2001:db8::/32")}, 0, perSecond, 1},
		{"[2001:db8::/32]:22=1/s", "[2001:db8::_32]:22", policy.HostPattern{Prefix: netip.MustParsePrefix("2001:db8::/32")}, 22, perSecond, 1},
	} {
		want := defaultBudget()
		want.Name, want.Rate, want.Burst = c.name, c.rate, c.burst
		want.Match.Hosts = []policy.HostPattern{c.host}
		if c.port != 0 {
			want.Match.Ports, want.Match.PortsNamed = []uint16{c.port}, true
		}
		got, err := ParseLimit(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", c.text, got, want)
		}
	}
}

func TestParseLimitOptions(t *testing.T) {
	for text, want := range map[string]func(*policy.Budget){
		"1/s,burst=0.5":       func(b *policy.Budget) { b.Burst = 0.5 },
		"1/s,concurrency=4":   func(b *policy.Budget) { b.Concurrency = 4 },
		"1/s,window=100/1m":   func(b *policy.Budget) { b.Window = policy.Window{Limit: 100, Per: time.Minute} },
		"1/s,tls=observe":     func(b *policy.Budget) { b.TLS = policy.Observe },
		"1/s,tls=terminate":   func(b *policy.Budget) { b.TLS = policy.Terminate },
		"1/s,tls=passthrough": func(*policy.Budget) {},
		"auto":                func(b *policy.Budget) { b.Auto = true },
		"auto,window=5000/1h30m,concurrency=1000000,burst=3": func(b *policy.Budget) {
			b.Auto, b.Burst, b.Concurrency = true, 3, 1000000
			b.Window = policy.Window{Limit: 5000, Per: 90 * time.Minute}
		},
	} {
		budget := defaultBudget()
		budget.Name, budget.Rate = "a.example", policy.Rate{Count: 1, Every: time.Second}
		budget.Match.Hosts = []policy.HostPattern{{Name: "a.example"}}
		want(budget)
		got, err := ParseLimit("a.example=" + text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if !reflect.DeepEqual(got, budget) {
			t.Errorf("%s: got %+v, want %+v", text, got, budget)
		}
	}
}

func TestParseLimitErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `has no rate; write it as HOST=RATE, as in store.example.com=1/s`,
		"store.example.com":        `has no rate; write it as HOST=RATE, as in store.example.com=1/s`,
		"=1/s":                     `host is empty; write a host name, or * for every host`,
		":80=1/s":                  `host is empty; write a host name, or * for every host`,
		"a.example:0=1/s":          `port must be from 1 to 65535, not "0"`,
		"a.example:70000=1/s":      `port must be from 1 to 65535, not "70000"`,
		"a.example:http=1/s":       `port must be from 1 to 65535, not "http"`,
		"a.example:=1/s":           `port must be from 1 to 65535, not ""`,
		"http://a.example=1/s":     `port must be from 1 to 65535, not "//a.example"`,
		"a example=1/s":            `host "a example" is neither a host name nor an address; write it as store.example.com, 203.0.113.7 or 203.0.113.0/24`,
		"[::1=1/s":                 `host "[::1" is no IPv6 address in brackets; write it as [2001:db8::1]`,
		"[::1]x=1/s":               `host "[::1]x" is no IPv6 address in brackets; write it as [2001:db8::1]`,
		"a.example=1":              `rate "1" has no unit of time; write it as 1/s, 90/min or 5000/h`,
		"a.example=":               `rate "" has no unit of time; write it as 1/s, 90/min or 5000/h`,
		"a.example=0/s":            `rate must be positive, not "0/s"; to let nothing out, block the destination elsewhere`,
		"a.example=1/s,":           `unknown option ""; burst=N, window=N/DURATION, concurrency=N and tls=MODE may follow the rate`,
		"a.example=1/s,brust=2":    `unknown option "brust=2"; burst=N, window=N/DURATION, concurrency=N and tls=MODE may follow the rate`,
		"a.example=1/s,burst=2,x":  `unknown option "x"; burst=N, window=N/DURATION, concurrency=N and tls=MODE may follow the rate`,
		"a.example=1/s,burst":      `burst must be a number above 0, at most 1000000000, not ""`,
		"a.example=1/s,burst=":     `burst must be a number above 0, at most 1000000000, not ""`,
		"a.example=1/s,burst=0":    `burst must be a number above 0, at most 1000000000, not "0"`,
		"a.example=1/d,burst=1000": `burst takes more than a year to refill at 1/d; write a smaller burst`,
		"a.example=auto,burst=1e9": `burst must be a number above 0, at most 1000000000, not "1e9"`,
		"a.example=1/s,burst=2,concurrency=2,burst=2": `burst is given twice; remove one`,
		"a.example=1/s,concurrency=0":                 `concurrency must be a whole number from 1 to 1000000, not "0"`,
		"a.example=1/s,concurrency=+4":                `concurrency must be a whole number from 1 to 1000000, not "+4"`,
		"a.example=1/s,concurrency=04":                `concurrency must be a whole number from 1 to 1000000, not "04"`,
		"a.example=1/s,concurrency=1000001":           `concurrency must be a whole number from 1 to 1000000, not "1000001"`,
		"a.example=1/s,tls=on":                        `tls must be passthrough, observe or terminate, not "on"`,
		"a.example=1/s,tls":                           `tls must be passthrough, observe or terminate, not ""`,
		"a.example=1/s,window=100":                    `window "100" has no length; write it as 100/1m`,
		"a.example=1/s,window=0/1m":                   `window limit must be a whole number from 1 to 1000000000, not "0"`,
		"a.example=1/s,window=1/min":                  `window length "min" is no duration; write it as 30s, 5m, 1h30m or 250ms`,
		"a.example=1/s,window=1/60":                   `window length has no unit; write "60s", or another of ms, m and h`,
		"a.example=1/s,window=1/745h":                 `window length must be from 1ms to 744h, not 745h`,
	} {
		b, err := ParseLimit(text)
		if want := `--limit "` + text + `": ` + want; b != nil || err == nil || err.Error() != want {
			t.Errorf("%q: got %v, %v; want %s", text, b, err, want)
		}
	}
}
