// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// JournalSocket is where systemd-journald takes messages.
const JournalSocket = "/run/systemd/journal/socket"

// Field is one of a message in the journal. Its name has capitals, digits and
// underscores.
type Field struct{ Name, Value string }

// journal is a sink that speaks journald's own protocol
// (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): a datagram for each message.
type journal struct {
	socket string
	fields func(policy.Event) []Field
	conn   *net.UnixConn
}

// NewJournal returns a sink of messages to the journald at socket. Where there
// is none, events go nowhere, without an error.
func NewJournal(socket string, fields func(policy.Event) []Field) Sink {
	return &journal{socket: socket, fields: fields}
}

// journalTimeout bounds a write: journald may hang, and is then to be given up
// rather than the events after this one.
const journalTimeout = time.Second

// maxField bounds a value: a datagram has to fit into the socket's buffer.
const maxField = 8 << 10

// Write implements Sink.
func (j *journal) Write(ev policy.Event) error {
	message := encodeJournal(j.fields(ev))
	// After journald was restarted, the first write says so.
	for again := j.conn != nil; ; again = false {
		if j.conn == nil {
			conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: j.socket, Net: "unixgram"})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("connect to the journal: %w", err)
			}
			j.conn = conn
		}
		err := j.conn.SetWriteDeadline(time.Now().Add(journalTimeout))
		if err == nil {
			_, err = j.conn.Write(message)
		}
		if err == nil {
			return nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("write to the journal: %w", err)
		}
		_ = j.Close()
		if !again {
			return fmt.Errorf("write to the journal: %w", err)
		}
	}
}

// Reopen implements Sink.
func (j *journal) Reopen() error { return j.Close() }

// Close implements Sink.
func (j *journal) Close() error {
	if j.conn == nil {
		return nil
	}
	conn := j.conn
	j.conn = nil
	return conn.Close()
}

// encodeJournal writes a message: NAME=value, or, where the value has several
// lines, the name, the length of the value as 64 bits and the value.
func encodeJournal(fields []Field) []byte {
	var out []byte
	for _, f := range fields {
		value := f.Value
		if len(value) > maxField {
			value = strings.ToValidUTF8(value[:maxField], "") + "…"
		}
		out = append(out, f.Name...)
		if strings.Contains(value, "\n") {
			out = append(out, '\n')
			out = binary.LittleEndian.AppendUint64(out, uint64(len(value)))
		} else {
			out = append(out, '=')
		}
		out = append(append(out, value...), '\n')
	}
	return out
}

// ToJournal reports whether what the process writes to f goes to the journal:
// systemd says in $JOURNAL_STREAM which file that is (systemd.exec(5)).
func ToJournal(f *os.File, getenv func(string) string) bool {
	var dev, ino uint64
	if _, err := fmt.Sscanf(getenv("JOURNAL_STREAM"), "%d:%d", &dev, &ino); err != nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Dev == dev && st.Ino == ino
}
