// SPDX-License-Identifier: Apache-2.0

package events

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// journald is a socket as journald has it.
func journald(t testing.TB, name string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// decodeJournal reads a message as journald does.
func decodeJournal(message []byte) (out []Field, err error) {
	for len(message) > 0 {
		line, rest, ok := bytes.Cut(message, []byte("\n"))
		if !ok {
			return nil, fmt.Errorf("no end of line in %q", message)
		}
		if name, value, ok := bytes.Cut(line, []byte("=")); ok {
			out, message = append(out, Field{string(name), string(value)}), rest
			continue
		}
		if len(rest) < 8 {
			return nil, fmt.Errorf("no length after %q", line)
		}
		n := binary.LittleEndian.Uint64(rest)
		if rest = rest[8:]; uint64(len(rest)) <= n || rest[n] != '\n' {
			return nil, fmt.Errorf("length %d after %q", n, line)
		}
		out, message = append(out, Field{string(line), string(rest[:n])}), rest[n+1:]
	}
	return out, nil
}

// receive gives the next message.
func receive(t testing.TB, conn *net.UnixConn) []Field {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := decodeJournal(buf[:n])
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func fieldsOf(ev policy.Event) []Field {
	return []Field{{"MESSAGE", ev.Detail}, {"EGRESSD_KIND", string(ev.Kind)}}
}

func TestJournal(t *testing.T) {
	name := filepath.Join(t.TempDir(), "socket")
	sink := NewJournal(name, fieldsOf)
	defer sink.Close()
	say := func(detail string) error { return sink.Write(policy.Event{Kind: policy.EventReload, Detail: detail}) }
	if err := say("nobody there"); err != nil {
		t.Errorf("without journald: got %v, want silence", err)
	}
	conn := journald(t, name)
	for _, detail := range []string{"plain", "two\nlines=\n", "", "with = and ü"} {
		if err := say(detail); err != nil {
			t.Fatal(err)
		}
		if got, want := receive(t, conn), []Field{{"MESSAGE", detail}, {"EGRESSD_KIND", "reload"}}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := say(strings.Repeat("ü", maxField)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, conn)[0].Value; len(got) > maxField+len("…") || !strings.HasSuffix(got, "ü…") {
		t.Errorf("got %d bytes that end in %q, want them cut at %d", len(got), got[len(got)-5:], maxField)
	}

	// journald is restarted: its socket is another one.
	conn.Close()
	if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	conn = journald(t, name)
	if err := say("again"); err != nil {
		t.Errorf("after a restart: got %v", err)
	}
	if got := receive(t, conn)[0].Value; got != "again" {
		t.Errorf("after a restart: got %q", got)
	}
	if err := sink.Reopen(); err != nil {
		t.Error(err)
	}
	if err := say("reopened"); err != nil || receive(t, conn)[0].Value != "reopened" {
		t.Errorf("after Reopen: got %v", err)
	}
}

// TestJournalThatHangs holds that a journald which reads nothing costs events,
// not the writer.
func TestJournalThatHangs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "socket")
	conn := journald(t, name)
	sink := NewJournal(name, fieldsOf)
	defer sink.Close()
	ev := policy.Event{Kind: policy.EventReload, Detail: strings.Repeat("x", maxField)}
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		err = sink.Write(ev)
	}
	if err == nil {
		t.Fatal("a socket that nobody reads took everything")
	}
	for range n - 1 {
		receive(t, conn)
	}
	if err := sink.Write(ev); err != nil {
		t.Errorf("when it reads again: got %v", err)
	}
}

// FuzzJournal holds that what is written is what journald reads.
func FuzzJournal(f *testing.F) {
	f.Add("a", "b\nc")
	f.Fuzz(func(t *testing.T, a, b string) {
		want := []Field{{"MESSAGE", a}, {"EGRESSD_DETAIL", b}}
		got, err := decodeJournal(encodeJournal(want))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if v := want[i].Value; len(v) <= maxField && got[i] != want[i] || len(got[i].Value) > maxField+8 {
				t.Errorf("got %q, want %q", got[i], want[i])
			}
		}
	})
}

func TestToJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{
		"": false, "x": false, "1": false,
		fmt.Sprintf("%d:%d", st.Dev, st.Ino):   true,
		fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false,
		fmt.Sprintf("%d:%d", st.Dev+1, st.Ino): false,
	} {
		if got := ToJournal(f, func(string) string { return stream }); got != want {
			t.Errorf("%q: got %v, want %v", stream, got, want)
		}
	}
}
