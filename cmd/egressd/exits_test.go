// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

func use(change func(*admin.Use)) admin.Use {
	u := admin.Use{
		Requests: 200, TooMany: 13, Refused: 4, Price: 4.2,
		Connections: admin.Connections{Redirected: 20, Untouched: 2, Refused: 1},
		Outcomes: map[string]admin.Traffic{
			"useful":   {Exchanges: 180, Sent: 1_000_000, Received: 900_000_000},
			"redirect": {Exchanges: 5, Sent: 1000, Received: 2000},
			"blocked":  {Exchanges: 13, Sent: 50_000, Received: 99_000_000},
			"failed":   {Exchanges: 2, Sent: 3000},
			"unseen":   {Exchanges: 1, Sent: 5, Received: 7},
		},
	}
	if change != nil {
		change(&u)
	}
	u.Estimate()
	return u
}

func TestExitsCSV(t *testing.T) {
	to := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	pair := func(exit, destination string, u admin.Use) admin.Pair {
		return admin.Pair{Exit: exit, Destination: destination, Use: u}
	}
	none := func(u *admin.Use) { *u = admin.Use{Requests: 1} }
	var out bytes.Buffer
	err := writeExitsCSV(&out, admin.Exits{From: to.Add(-time.Hour), To: to, Pairs: []admin.Pair{
		pair("E-017/abc", "store.example.com", use(nil)),
		pair("direct", "other", use(none)),
		pair(`=HYPERLINK("http://x","y")`, "*.store.example.com", use(none)),
		pair("-1+1", "a,b", use(none)),
		pair("@SUM(A1)\nnext", "other", use(none)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	const zeros = ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,,,\n"
	want := `from,to,exit,destination,requests,answers_429,refused,connections_redirected,connections_untouched,connections_refused,` +
		`useful_exchanges,useful_sent_bytes,useful_received_bytes,redirect_exchanges,redirect_sent_bytes,redirect_received_bytes,` +
		`blocked_exchanges,blocked_sent_bytes,blocked_received_bytes,failed_exchanges,failed_sent_bytes,failed_received_bytes,` +
		`unseen_exchanges,unseen_sent_bytes,unseen_received_bytes,bytes,waste_share,price_per_gb,estimated_cost
2030-01-02T02:04:05Z,2030-01-02T03:04:05Z,E-017/abc,store.example.com,200,13,4,20,2,1,180,1000000,900000000,5,1000,2000,13,50000,99000000,2,3000,0,1,5,7,1000056012,0.0991,4.2,4.200235
2030-01-02T02:04:05Z,2030-01-02T03:04:05Z,direct,other,1` + zeros +
		`2030-01-02T02:04:05Z,2030-01-02T03:04:05Z,"'=HYPERLINK(""http://x"",""y"")",*.store.example.com,1` + zeros +
		`2030-01-02T02:04:05Z,2030-01-02T03:04:05Z,'-1+1,"a,b",1` + zeros +
		"2030-01-02T02:04:05Z,2030-01-02T03:04:05Z,\"'@SUM(A1)\nnext\",other,1" + zeros
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// FuzzInert holds that no name becomes a formula, and that none is lost.
func FuzzInert(f *testing.F) {
	for _, s := range []string{"", "direct", "=1+1", "+1", "-1", "@x", "\tx", "\rx", "'x", "＝1", "E-017/=1", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := inert(s)
		if strings.IndexAny(got, "=+-@\t\r\n") == 0 {
			t.Errorf("%q became %q", s, got)
		}
		back := got
		if strings.HasPrefix(got, "'") {
			back = got[1:]
		}
		if back != s {
			t.Errorf("%q became %q", s, got)
		}
		// The reader takes "\r\n" for "\n", as every reader of CSV may.
		if strings.Contains(s, "\r") {
			return
		}
		var out bytes.Buffer
		w := csv.NewWriter(&out)
		if err := w.WriteAll([][]string{{got, "end"}}); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&out).ReadAll()
		if err != nil || len(rows) != 1 || rows[0][0] != got {
			t.Errorf("%q is read as %q, %v", got, rows, err)
		}
	})
}

func TestExitRow(t *testing.T) {
	score := func(x float64) *float64 { return &x }
	for _, tt := range []struct {
		exit admin.Exit
		want string
	}{
		{admin.Exit{Exit: "E-017/abc", Use: use(nil), PerSecond: 1.5, Closed: 2, ClosedFor: 180, Lockstep: score(0.82)},
			"E-017/abc|200|1.5/s|6.5%|23 (2 untouched, 1 refused)|2 lanes, 3m0s|1.05 MB|999 MB|9.9%|4.20|0.82 lockstep"},
		{admin.Exit{Exit: "direct", Closed: 1, ClosedFor: 2, Lockstep: score(0.3)}, "direct|0|-|-|0|1 lane, 2s|0 B|0 B|-|-|0.30 some"},
		{admin.Exit{Exit: "wg0", Lockstep: score(0), Use: use(func(u *admin.Use) { u.Price, u.TooMany, u.Connections = 0, 0, admin.Connections{Redirected: 5} })},
			"wg0|200|-|0%|5|-|1.05 MB|999 MB|9.9%|-|0.00"},
	} {
		if got := strings.Join(exitRow(&tt.exit), "|"); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "1.00 kB", 9994: "9.99 kB", 9996: "10.0 kB", 99_949: "99.9 kB", 99_951: "100 kB",
		999_499: "999 kB", 999_500: "1.00 MB", 1_234_567_890: "1.23 GB", 1 << 63: "9.22 EB", 1<<64 - 1: "18.4 EB",
	} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestFormatShare(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0%", 0.0001: "<0.1%", 0.001: "0.1%", 0.0123: "1.2%", 0.0994: "9.9%", 0.0996: "10%", 0.5: "50%", 0.9991: ">99.9%", 1: "100%",
	} {
		if got := formatShare(x); got != want {
			t.Errorf("%v: got %q, want %q", x, got, want)
		}
	}
}
