// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/test/vm/frame"
)

// collect is a teller whose frames are kept.
func collect() (t *teller, frames func() []frame.Frame) {
	var port bytes.Buffer
	return &teller{frame.NewWriter(&port)}, func() (all []frame.Frame) {
		if err := frame.Read(&port, func(f frame.Frame) { all = append(all, f) }); err != nil {
			panic(err)
		}
		return all
	}
}

func TestTorn(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 0, "\u00e9": 0, "a\xc3": 1, "\xe2\x82": 2, "\xf0\x9f\x98": 3, "\xf0\x9f\x98\x80": 0,
		"\xff": 0, "\x80\x80\x80\x80": 0, "\u00e9\x80": 0,
	} {
		if got := torn([]byte(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// What a program prints comes out as it was, however it was cut.
func TestPass(t *testing.T) {
	text := strings.Repeat("\u20ac0\u00e9\x16--- PASS\n", chunk/5)
	for name, in := range map[string]*strings.Reader{"whole": strings.NewReader(text), "bytes": strings.NewReader(text)} {
		host, frames := collect()
		if name == "bytes" {
			host.pass("run", iotest.OneByteReader(in))
		} else {
			host.pass("run", in)
		}
		var got strings.Builder
		for _, f := range frames() {
			if f.Kind != frame.Output || f.Run != "run" || !utf8.ValidString(f.Text) || len(f.Text) > chunk {
				t.Fatalf("%s: got frame %+v", name, f)
			}
			got.WriteString(f.Text)
		}
		if got.String() != text {
			t.Errorf("%s: got %d bytes that are not the %d that were printed", name, got.Len(), len(text))
		}
	}
	host, frames := collect()
	host.pass("run", strings.NewReader("cut \xe2\x82"))
	if got := frames(); len(got) == 0 || got[0].Text != "cut " {
		t.Errorf("got %+v of text that ends within a character", got)
	}
}

// exec is what runs programs; the rest of init is only for process 1.
func TestExec(t *testing.T) {
	for script, want := range map[string]int{"echo out; echo err >&2; exit 3": 3, "kill -9 $$": 137, "exit 0": 0} {
		host, frames := collect()
		code, err := host.exec(frame.Run{Name: "run", Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Timeout: time.Minute})
		if err != nil || code != want {
			t.Errorf("%s: got %d, %v; want %d", script, code, err, want)
		}
		var got strings.Builder
		for _, f := range frames() {
			got.WriteString(f.Text)
		}
		if strings.HasPrefix(script, "echo") && got.String() != "out\nerr\n" {
			t.Errorf("%s: got %q", script, got.String())
		}
	}
	host, _ := collect()
	if _, err := host.exec(frame.Run{Name: "run", Path: "/no/such/program", Timeout: time.Minute}); err == nil {
		t.Error("no such program: got no error")
	}
}

func TestOthersListsProcesses(t *testing.T) {
	self := false
	for _, name := range others() {
		self = self || strings.HasPrefix(name, strconv.Itoa(os.Getpid())+" (init.test)")
	}
	if !self {
		t.Errorf("got %v, want this process among them", others())
	}
	if before, after := cutLast("a) b) c", ") "); before != "a) b" || after != "c" {
		t.Errorf("got %q and %q", before, after)
	}
}
