// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// world builds a survey for tests of what is made of one.
type world struct{ survey }

func newWorld() *world {
	w := &world{survey{links: make(map[int]*device)}}
	w.add(1, "lo", "device", qdisc{kind: "noqueue"}).loopback = true
	return w
}

func (w *world) add(index int, name, kind string, root qdisc, leaves ...qdisc) *device {
	d := &device{name: name, index: index, kind: kind, up: true, queueLength: 1000, root: root, leaves: leaves}
	w.links[index] = d
	return d
}

func (w *world) route(dest string, via ...int) *world {
	w.routes = append(w.routes, route{dest: netip.MustParsePrefix(dest), via: via})
	return w
}

func (w *world) local(dest string) *world {
	w.routes = append(w.routes, route{dest: netip.MustParsePrefix(dest), via: []int{1}, local: true})
	return w
}

// attached is what hooks would do: the program is wherever fq holds.
func (w *world) attached() map[int]attachment {
	at := make(map[int]attachment)
	for index, d := range w.links {
		if d.holds() {
			at[index] = attachment{how: byTCX}
		}
	}
	return at
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var (
	noqueue = qdisc{kind: "noqueue"}
	mq      = qdisc{kind: "mq"}
	fifo    = qdisc{kind: "pfifo_fast"}
)

func fq(horizon time.Duration) qdisc { return qdisc{kind: "fq", handle: 0x10000, horizon: horizon} }

func TestOutside(t *testing.T) {
	for _, tt := range []struct {
		name    string
		world   func(w *world)
		ready   bool
		horizon time.Duration
		outside []netip.Prefix
	}{
		{"nothing", func(*world) {}, false, 0, nil},
		{"one device with fq", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.local("127.0.0.0/8").local("192.0.2.7/32").route("0.0.0.0/0", 2).route("192.0.2.0/24", 2)
		}, true, 10 * time.Second, prefixes("127.0.0.0/8", "192.0.2.7/32")},
		{"one device without", func(w *world) {
			w.add(2, "eth0", "device", fifo)
			w.local("127.0.0.0/8").route("0.0.0.0/0", 2)
		}, false, 0, nil},
		{"containers beside it", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.add(3, "docker0", "bridge", noqueue)
			w.route("0.0.0.0/0", 2).route("172.17.0.0/16", 3).local("172.17.0.1/32")
		}, true, 10 * time.Second, prefixes("172.17.0.0/16")},
		{"link-local alone is nothing", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.route("fe80::/64", 2)
		}, false, 0, nil},
		{"link-local of a device without", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.add(3, "eth1", "device", fifo)
			w.route("fe80::/64", 2).route("fe80::/64", 3).route("::/0", 2)
		}, true, 10 * time.Second, prefixes("fe80::/64")},
		{"the other family leaves otherwise", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.add(3, "tun0", "tuntap", fifo)
			w.local("::1/128").route("0.0.0.0/0", 2).route("::/0", 3)
		}, true, 10 * time.Second, prefixes("::/0")},
		{"a VPN over all of it", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.add(3, "tun0", "tuntap", fifo)
			w.route("0.0.0.0/0", 2).route("0.0.0.0/1", 3).route("128.0.0.0/1", 3).route("198.51.100.1/32", 2)
		}, false, 0, nil},
		{"halves", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.route("0.0.0.0/0", 2)
			w.local("10.0.0.0/10").local("10.64.0.0/11").local("10.96.0.0/11").local("10.128.0.0/9").local("11.128.0.0/9").local("12.0.0.0/9")
		}, true, 10 * time.Second, prefixes("10.0.0.0/8", "11.128.0.0/9", "12.0.0.0/9")},
		{"a default route in another table", func(w *world) {
			w.add(2, "eth0", "device", fq(10*time.Second))
			w.add(3, "wg0", "wireguard", noqueue)
			w.route("0.0.0.0/0", 2).route("0.0.0.0/0", 3)
		}, false, 0, nil},
		{"the shortest horizon counts", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute))
			w.add(3, "eth1", "device", mq, fq(10*time.Second), fq(2*time.Second))
			w.route("0.0.0.0/0", 2).route("10.0.0.0/8", 3)
		}, true, 2 * time.Second, nil},
		{"a horizon of no use", func(w *world) {
			w.add(2, "eth0", "device", fq(minHorizon-1))
			w.route("0.0.0.0/0", 2)
		}, false, 0, nil},
		{"the least horizon", func(w *world) {
			w.add(2, "eth0", "device", fq(minHorizon))
			w.route("0.0.0.0/0", 2)
		}, true, minHorizon, nil},
		{"one queue without", func(w *world) {
			w.add(2, "eth0", "device", mq, fq(time.Minute), fifo)
			w.route("0.0.0.0/0", 2)
		}, false, 0, nil},
		{"mq of which nothing is known", func(w *world) {
			w.add(2, "eth0", "device", mq)
			w.route("0.0.0.0/0", 2)
		}, false, 0, nil},
		{"one of two next hops without", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute))
			w.add(3, "eth1", "device", fifo)
			w.route("0.0.0.0/0", 2, 3).route("10.0.0.0/8", 2)
		}, false, 0, nil},
		{"a next hop that is not known", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute))
			w.route("0.0.0.0/0", 2).route("10.0.0.0/8", 0).route("12.0.0.0/8", 99)
		}, true, time.Minute, prefixes("10.0.0.0/8", "12.0.0.0/8")},
		{"a longer route to fq does not count", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute))
			w.add(3, "eth1", "device", fifo)
			w.route("10.0.0.0/8", 3).route("10.1.0.0/16", 2).route("0.0.0.0/0", 2)
		}, true, time.Minute, prefixes("10.0.0.0/8")},
		{"VLAN on fq", func(w *world) {
			w.add(2, "eth0", "device", mq, fq(time.Minute))
			w.add(3, "eth0.5", "vlan", noqueue).parent = 2
			w.route("0.0.0.0/0", 3)
		}, true, time.Minute, nil},
		{"VLAN with another qdisc of its own", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute))
			w.add(3, "eth0.5", "vlan", qdisc{kind: "htb", handle: 0x10000}).parent = 2
			w.route("0.0.0.0/0", 3)
		}, false, 0, nil},
		{"VLAN on a device of another namespace", func(w *world) {
			w.add(3, "eth0.5", "vlan", noqueue)
			w.route("0.0.0.0/0", 3)
		}, false, 0, nil},
		{"VLAN on a bond of two with fq", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute)).master = 4
			w.add(3, "eth1", "device", fq(time.Second)).master = 4
			w.add(4, "bond0", "bond", noqueue)
			w.add(5, "bond0.7", "vlan", noqueue).parent = 4
			w.route("0.0.0.0/0", 5)
		}, true, time.Second, nil},
		{"a bond of which one has no fq", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute)).master = 4
			w.add(3, "eth1", "device", fifo).master = 4
			w.add(4, "bond0", "bond", noqueue)
			w.route("0.0.0.0/0", 4)
		}, false, 0, nil},
		{"a bond of which one is down", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute)).master = 4
			d := w.add(3, "eth1", "device", fifo)
			d.master, d.up = 4, false
			w.add(4, "bond0", "bond", noqueue)
			w.route("0.0.0.0/0", 4)
		}, true, time.Minute, nil},
		{"a bond of none", func(w *world) {
			w.add(4, "bond0", "bond", noqueue)
			w.route("0.0.0.0/0", 4)
		}, false, 0, nil},
		{"a bridge clears the time", func(w *world) {
			w.add(2, "eth0", "device", fq(time.Minute)).master = 4
			w.add(4, "br0", "bridge", noqueue)
			w.route("0.0.0.0/0", 4)
		}, false, 0, nil},
		{"a bridge with fq", func(w *world) {
			w.add(2, "eth0", "device", fifo).master = 4
			w.add(4, "br0", "bridge", fq(time.Minute))
			w.route("0.0.0.0/0", 4)
		}, true, time.Minute, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			tt.world(w)
			got := w.judge(w.attached(), nil)
			if got.Ready != tt.ready || got.Horizon != tt.horizon || !slices.Equal(got.Outside, tt.outside) {
				t.Errorf("got ready %v, horizon %v, outside %v; want %v, %v, %v", got.Ready, got.Horizon, got.Outside, tt.ready, tt.horizon, tt.outside)
			}
			for _, d := range got.Devices {
				if d.Paced != (d.Why == "") {
					t.Errorf("%s: paced %v, because of %q", d.Name, d.Paced, d.Why)
				}
			}
		})
	}
}

func TestDevices(t *testing.T) {
	w := newWorld()
	w.add(2, "eth0", "device", qdisc{kind: "mq", handle: ourHandle}, fq(time.Minute), fq(time.Minute)).master = 9
	w.add(3, "eth1", "device", mq, fifo, fq(time.Minute))
	w.add(4, "eth2", "device", qdisc{kind: "htb", handle: 0x10000}, qdisc{kind: "fq_codel"})
	w.add(5, "eth3", "device", fq(time.Millisecond))
	w.add(6, "eth4", "device", fq(time.Minute)).up = false // with fq, but unused
	w.add(7, "eth5", "device", fifo)                       // unused
	w.add(8, "eth6", "device", fifo).up = false
	w.add(9, "bond0", "bond", noqueue)
	w.add(10, "eth7", "device", fq(time.Minute))
	w.route("0.0.0.0/1", 9).route("fe80::/64", 7)
	for i := 3; i <= 8; i++ {
		if i != 6 && i != 7 {
			w.route(fmt.Sprintf("10.%d.0.0/16", i), i)
		}
	}
	at := w.attached()
	at[10] = attachment{err: fmt.Errorf("attach to eth7: out of luck"), foreign: []string{"theirs (id 7)"}}
	got := w.judge(at, map[int]error{4: fmt.Errorf("its qdisc stays")})
	want := []Device{
		{Name: "eth0", Index: 2, Qdisc: "mq+fq", FQ: true, Horizon: time.Minute, Attached: "tcx", Ours: true, Routed: true, Default: true, Paced: true},
		{Name: "eth1", Index: 3, Qdisc: "mq+fq/pfifo_fast", Routed: true, Why: "its qdisc is mq+fq/pfifo_fast, not fq"},
		{Name: "eth2", Index: 4, Qdisc: "htb", Routed: true, Why: "its qdisc stays"},
		{Name: "eth3", Index: 5, Qdisc: "fq", FQ: true, Horizon: time.Millisecond, Routed: true, Why: "its fq holds nothing for longer than 1ms"},
		{Name: "eth4", Index: 6, Qdisc: "fq", FQ: true, Horizon: time.Minute, Attached: "tcx", Paced: true},
		{Name: "bond0", Index: 9, Qdisc: "noqueue", Lower: []string{"eth0"}, Routed: true, Default: true, Paced: true},
		{
			Name: "eth7", Index: 10, Qdisc: "fq", FQ: true, Horizon: time.Minute, Foreign: []string{"theirs (id 7)"},
			Why: "attach to eth7: out of luck",
		},
	}
	if !reflect.DeepEqual(got.Devices, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got.Devices, want)
	}
}

// A namespace with more routes than the kernel could be told of is outside as a
// whole; up to the bound all are kept.
func TestTooManyOutside(t *testing.T) {
	for _, n := range []int{maxOutside, maxOutside + 1} {
		var list []netip.Prefix
		for i := range n {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 32))
		}
		list = append(list, netip.MustParsePrefix("2001:db8::/32"))
		got := outermost(append(list, list...))
		want := n + 1
		if n > maxOutside {
			want = 2
		}
		if len(got) != want || got[len(got)-1] != list[n] {
			t.Errorf("%d prefixes: got %d, the last %v; want %d", n, len(got), got[len(got)-1], want)
		}
		if n > maxOutside && got[0] != netip.MustParsePrefix("0.0.0.0/0") {
			t.Errorf("got %v, want all of IPv4", got[0])
		}
	}
}

func TestMayInstall(t *testing.T) {
	ours := qdisc{kind: "mq", handle: ourHandle}
	set := qdisc{kind: "pfifo_fast", handle: 0x20000}
	for _, tt := range []struct {
		name      string
		d         device
		byDefault bool
		want      string // part of why not; "" is yes
	}{
		{"default", device{root: fifo, queueLength: 1}, false, ""},
		{"default of many queues", device{root: mq, leaves: []qdisc{fifo, fifo}, queueLength: 1}, false, ""},
		{"ours, half done", device{root: ours, leaves: []qdisc{fifo}, queueLength: 1}, false, ""},
		{"set", device{root: qdisc{kind: "htb", handle: 0x10000}, queueLength: 1}, true, "htb 1: was set"},
		{"set to the default", device{root: set, queueLength: 1}, true, "pfifo_fast 2: was set"},
		{"part of mq set", device{root: mq, leaves: []qdisc{fifo, set}, queueLength: 1}, true, "a part that was set"},
		{"of parts", device{root: qdisc{kind: "mqprio"}, leaves: []qdisc{fifo}, queueLength: 1}, true, "parts of its own"},
		{"without a queue", device{root: noqueue, queueLength: 1}, false, "no default route"},
		{"without a queue, default route", device{root: noqueue, queueLength: 1}, true, ""},
		{"of length 0", device{root: noqueue}, true, "is 0"},
	} {
		err := mayInstall(&tt.d, tt.byDefault)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.want)
		}
	}
}
