// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What happens in the namespace is seen, and as what.
func TestWatch(t *testing.T) {
	mustNetns(t)
	mustVeth(t, "v0", "192.0.2.1/24")
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tt := range []struct {
		name string
		do   func()
		want change
	}{
		{"qdisc", func() { mustQdisc(t, "v0", plain) }, devicesChanged},
		{"route", func() { mustRoute(t, "198.51.100.0/24", "v0", 7) }, allChanged},
		{"route of IPv6", func() { mustRoute(t, "2001:db8:1::/48", "v0", 0) }, allChanged},
		{"address", func() { mustAddr(t, "v0", "192.0.2.2/24") }, allChanged},
		{"device", func() { mustVeth(t, "v1", "") }, allChanged},
	} {
		// What went before may still be told.
		for quiet := false; !quiet; {
			select {
			case <-w.wake:
			case <-time.After(50 * time.Millisecond):
				w.take()
				quiet = true
			}
		}
		tt.do()
		select {
		case <-w.wake:
		case <-time.After(deadline):
			t.Fatalf("%s: nothing was seen", tt.name)
		}
		seen := w.take()
		eventually(t, tt.name, func() bool { seen |= w.take(); return seen&tt.want == tt.want })
	}
}

func message(kind uint16, length uint32, body int) []byte {
	m := binary.NativeEndian.AppendUint32(nil, length)
	m = binary.NativeEndian.AppendUint16(m, kind)
	return append(m, make([]byte, unix.SizeofNlMsghdr-6+body)...)
}

func TestChangesIn(t *testing.T) {
	qdisc := message(unix.RTM_NEWQDISC, 20, 4)
	class := message(unix.RTM_NEWTCLASS, 18, 4) // padded to 20
	link := message(unix.RTM_NEWLINK, 16, 0)
	for _, tt := range []struct {
		name string
		data []byte
		want change
	}{
		{"nothing", nil, 0},
		{"qdisc", qdisc, devicesChanged},
		{"class", class, 0},
		{"device", link, allChanged},
		{"class, then qdisc", append(append([]byte{}, class...), qdisc...), devicesChanged},
		{"qdisc, then device", append(append([]byte{}, qdisc...), link...), allChanged},
		{"longer than the datagram", message(unix.RTM_NEWTCLASS, 21, 4), allChanged},
		{"shorter than a header", message(unix.RTM_NEWTCLASS, 15, 4), allChanged},
		{"longer than an int32", message(unix.RTM_NEWTCLASS, 1<<32-1, 4), allChanged},
		{"rest shorter than a header", append(append([]byte{}, class...), 1, 2, 3), 0},
	} {
		if got := changesIn(tt.data); got != tt.want {
			t.Errorf("%s: got %b, want %b", tt.name, got, tt.want)
		}
	}
}

// What is in a datagram does not depend on the messages before it.
func FuzzChangesIn(f *testing.F) {
	f.Add(message(unix.RTM_NEWQDISC, 20, 4))
	f.Add(append(message(unix.RTM_NEWTCLASS, 18, 4), message(unix.RTM_NEWLINK, 16, 0)...))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		got := changesIn(data)
		if got&^allChanged != 0 {
			t.Fatalf("got %b, which is no change", got)
		}
		for kind, adds := range map[uint16]change{unix.RTM_NEWTCLASS: 0, unix.RTM_NEWQDISC: devicesChanged, unix.RTM_NEWLINK: allChanged} {
			if more := changesIn(append(message(kind, 18, 4), data...)); more != got|adds {
				t.Fatalf("got %b, and %b behind a message of type %d", got, more, kind)
			}
		}
	})
}
