// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/egressd/egressd/policy/ledger"
)

// Message is a DNS message as it arrived: a response to a standard query,
// without an error and with at least one record. That much is known of its
// header, and nothing of the rest.
type Message struct {
	Time   ledger.Time // when it arrived
	Netns  uint64      // cookie of the network namespace of the socket
	Cgroup uint64      // id of the socket's cgroup: that of whoever made it
	TCP    bool
	Data   []byte // valid until the handler returns
}

// What is read in a second at most: some 25 000 ordinary answers. It keeps a
// flood of answers from taking the daemon's time; what comes beyond is lost in
// the full ring, and counted.
const (
	perSecond   = 8 << 20 // bytes
	perMessage  = 256     // the work that is not by bytes, in bytes
	paceWindow  = 50 * time.Millisecond
	perPaceTurn = perSecond * int(paceWindow) / int(time.Second)
)

// Run hands the messages to handle, one by one and as soon as they arrive, until
// ctx ends; then it returns nil. Handle must not block: while it does, the ring
// fills, and what finds no room is lost and counted.
func (r *Reader) Run(ctx context.Context, handle func(*Message)) error {
	stop := context.AfterFunc(ctx, func() { _ = r.reader.Flush() })
	defer stop()
	var record ringbuf.Record
	var m Message
	began, done := time.Now(), 0
	for ctx.Err() == nil {
		err := r.reader.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read DNS answers: %w", err)
		}
		if m.decode(record.RawSample) {
			handle(&m)
		}
		if time.Since(began) >= paceWindow {
			began, done = time.Now(), 0
		}
		if done += perMessage + len(m.Data); done >= perPaceTurn {
			rest(ctx, time.Until(began.Add(paceWindow)))
		}
	}
	return nil
}

// rest sleeps, unless ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// decode reads a record of the ring. The message stays where it is.
func (m *Message) decode(raw []byte) bool {
	const size = int(unsafe.Sizeof(dnsAnswer{}))
	if len(raw) < size {
		return false
	}
	var a dnsAnswer
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&a)), size), raw)
	if int(a.Len) > len(raw)-size {
		return false
	}
	*m = Message{
		Time:   ledger.Time(a.Time),
		Netns:  a.Netns,
		Cgroup: a.Cgroup,
		TCP:    a.Tcp != 0,
		Data:   raw[size : size+int(a.Len)],
	}
	return true
}
