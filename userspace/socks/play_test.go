// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/userspace/sniff"
)

// step is what one side sends at a time: "c" or "s" and the bytes.
type step struct {
	from string
	data string
}

// story is what an Observer tells of a script. Payload is counted by the side,
// since how it is cut into events is nobody's business.
type story struct {
	events         []string
	payload        [2]int
	opaque         [2]int
	client, server string // bytes not consumed
	err            error
	observer       Observer
	password       []int // indexes into the bytes of the client that are a password
	clientSeen     int
}

// play shows script to a new Observer, in pieces of at most size bytes, as a
// relay does: client first, then one message of the proxy, and again.
func play(tb testing.TB, script []step, size int) *story {
	tb.Helper()
	st := &story{}
	var pending [2][]byte
	for _, s := range script {
		side := strings.Index("cs", s.from)
		for data := []byte(s.data); len(data) > 0 && st.err == nil; {
			n := min(size, len(data))
			pending[side] = append(pending[side], data[:n]...)
			data = data[n:]
			for st.one(tb, 0, &pending[0]) || st.one(tb, 1, &pending[1]) {
			}
		}
	}
	st.client, st.server = string(pending[0]), string(pending[1])
	return st
}

// one consumes a message of a side, and holds the contract of the calls.
func (st *story) one(tb testing.TB, side int, pending *[]byte) bool {
	tb.Helper()
	if st.err != nil {
		return false
	}
	o := &st.observer
	observe := [2]func([]byte) (int, Event, error){o.Client, o.Server}[side]
	b := bytes.Clone(*pending)
	n, ev, err := observe(b)
	if !bytes.Equal(b, *pending) {
		tb.Fatal("bytes changed")
	}
	switch {
	case n < 0 || n > len(b):
		tb.Fatalf("consumed %d of %d", n, len(b))
	case (n == 0) != (ev == None):
		tb.Fatalf("%v with n = %d", ev, n)
	case err != nil && n != 0:
		tb.Fatalf("%v with n = %d", err, n)
	case n == 0 && err == nil && side == 0 && len(b) >= MaxMessage && !st.waits():
		tb.Fatalf("wants more than %d bytes", len(b))
	}
	st.err = err
	if err != nil {
		for _, again := range []func([]byte) (int, Event, error){o.Client, o.Server} {
			if n, ev, err2 := again(b); n != 0 || ev != None || err2 != err {
				tb.Fatalf("after an error: %d, %v, %v", n, ev, err2)
			}
		}
		return false
	}
	if n == 0 {
		return false
	}
	switch ev {
	case Payload:
		st.payload[side] += n
	case Opaque:
		st.opaque[side] += n
	case Auth:
		for i := 3 + len(o.User()); i < n; i++ {
			st.password = append(st.password, st.clientSeen+i)
		}
		st.events = append(st.events, fmt.Sprintf("auth %q", o.User()))
	case Request:
		st.events = append(st.events, fmt.Sprintf("request %d %v %s %d", o.Version(), o.Command(), o.Host(), o.Port()))
	case Reply, Done, Failed:
		st.events = append(st.events, fmt.Sprintf("%v %v", ev, o.Outcome()))
	default:
		st.events = append(st.events, ev.String())
	}
	if side == 0 {
		st.clientSeen += n
		if ev != Payload && ev != Opaque && n > MaxMessage {
			tb.Fatalf("%v of %d bytes", ev, n)
		}
	}
	st.check(tb, ev)
	*pending = (*pending)[n:]
	return true
}

// waits reports whether the client may have to be answered first.
func (st *story) waits() bool {
	o := &st.observer
	return o.client == sendsNext && o.server == sendsMethod || o.client == sendsPayload && !o.command.tunnels()
}

// check holds what an Observer says after ev.
func (st *story) check(tb testing.TB, ev Event) {
	tb.Helper()
	o := &st.observer
	switch ev {
	case Request:
		host, port, ok := sniff.CanonicalHost(o.Host())
		if strings.Contains(o.Host(), ":") {
			host, port, ok = sniff.CanonicalHost("[" + o.Host() + "]")
		}
		if !ok || host != o.Host() || port != 0 {
			tb.Fatalf("host %q is not canonical", o.Host())
		}
	case Done:
		if o.Host() == "" || o.Outcome() != Granted {
			tb.Fatalf("done with %v for %q", o.Outcome(), o.Host())
		}
	case Failed:
		if o.Outcome() == Granted || o.Outcome() == Pending {
			tb.Fatalf("failed with %v", o.Outcome())
		}
		if o.Outcome() == NoMethod && o.Code() != 0xff || o.Version() == 5 && o.Code() == 0 { // of SOCKS4, 0 means nothing
			tb.Fatalf("%v by code %d", o.Outcome(), o.Code())
		}
	}
	if len(o.User()) > 255 {
		tb.Fatalf("user name of %d bytes", len(o.User()))
	}
}

// String is the story in a line.
func (st *story) String() string {
	out := strings.Join(st.events, ", ")
	for i, side := range []string{"client", "proxy"} {
		if st.payload[i] > 0 {
			out += fmt.Sprintf("; %d payload of %s", st.payload[i], side)
		}
		if st.opaque[i] > 0 {
			out += fmt.Sprintf("; %d opaque of %s", st.opaque[i], side)
		}
	}
	if st.client != "" && st.err == nil {
		out += fmt.Sprintf("; client waits with %d", len(st.client))
	}
	if st.server != "" && st.err == nil {
		out += fmt.Sprintf("; proxy waits with %d", len(st.server))
	}
	if st.err != nil {
		out += "; " + st.err.Error()
	}
	return strings.TrimPrefix(out, "; ")
}
