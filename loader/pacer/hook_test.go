// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hookRig is a device whose egress hook is looked at. Its qdisc does not matter.
type hookRig struct {
	t *testing.T
	s *surveyor
	k *hooks
}

func newHookRig(t *testing.T, noTCX bool) (*hookRig, func() uint64) {
	mustNetns(t)
	mustVeth(t, "v0", "192.0.2.1/24")
	mustNeighbour(t, "v0", "192.0.2.9")
	s, err := newSurveyor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	program, count := mustProgram(t, ProgramName, 0)
	return &hookRig{t, s, &hooks{h: s.h, program: program, noTCX: noTCX, links: make(map[int]link.Link)}}, count
}

func (r *hookRig) device() *device {
	r.t.Helper()
	found, _, err := r.s.look(true)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range found.links {
		if d.name == "v0" {
			return d
		}
	}
	r.t.Fatal("device v0 was not found")
	return nil
}

func (r *hookRig) filters() []netlink.Filter {
	r.t.Helper()
	filters, err := r.k.filters(r.device())
	if err != nil {
		r.t.Fatal(err)
	}
	return filters
}

// mustFilter adds a filter of somebody else.
func (r *hookRig) mustFilter(parent uint32, preference uint16, p *ebpf.Program) {
	r.t.Helper()
	err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: r.device().index, Parent: parent, Handle: 1, Priority: preference, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: "theirs", DirectAction: true,
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *hookRig) mustClsact() {
	r.t.Helper()
	if err := netlink.QdiscAdd(newClsact(r.device())); err != nil {
		r.t.Fatal(err)
	}
}

// needTCX skips a test on a kernel without tcx.
func needTCX(t *testing.T) {
	t.Helper()
	mustNetns(t)
	index := mustVeth(t, "tcx", "")
	p, _ := mustProgram(t, "probe", 0)
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXEgress})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip("this kernel has no tcx (6.6)")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(mustLink(t, "tcx")); err != nil {
		t.Fatal(err)
	}
}

func TestClsact(t *testing.T) {
	r, count := newHookRig(t, true)
	for range 2 { // the second time it is there already
		if a := r.k.keep(r.device()); a.err != nil || a.how != byClsact || a.foreign != nil {
			t.Fatalf("got %+v, want it attached by clsact", a)
		}
	}
	if n := len(r.filters()); n != 1 {
		t.Fatalf("%d filters, want 1", n)
	}
	before := count()
	mustSend(t, "192.0.2.9:9")
	if got := count(); got != before+1 {
		t.Errorf("%d packets counted, want 1", got-before)
	}
	if a := r.k.present(r.device()); a.how != byClsact || a.err != nil {
		t.Errorf("seen by others: got %+v, want clsact", a)
	}
	if err := r.k.drop(r.device()); err != nil {
		t.Fatal(err)
	}
	if d := r.device(); d.clsact {
		t.Error("the clsact that was added stays")
	}
	if a := r.k.present(r.device()); a.how != "" {
		t.Errorf("after it was dropped: got %+v", a)
	}
}

// What others have at clsact runs after ours, and stays when ours goes.
func TestClsactOfOthers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		parent uint32
		before bool // they come first
	}{
		{"egress, first", netlink.HANDLE_MIN_EGRESS, true},
		{"egress, later", netlink.HANDLE_MIN_EGRESS, false},
		{"ingress, later", netlink.HANDLE_MIN_INGRESS, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, count := newHookRig(t, true)
			theirs, theirCount := mustProgram(t, "theirs", 0)
			if tt.before {
				r.mustClsact()
				r.mustFilter(tt.parent, 1, theirs)
			}
			if a := r.k.keep(r.device()); a.err != nil || a.how != byClsact {
				t.Fatalf("got %+v, want it attached by clsact", a)
			}
			if !tt.before {
				r.mustFilter(tt.parent, 1, theirs)
			}
			if tt.parent == netlink.HANDLE_MIN_EGRESS {
				a := r.k.keep(r.device())
				if a.err != nil || len(a.foreign) != 1 || !strings.HasPrefix(a.foreign[0], "filter theirs (id ") {
					t.Errorf("got %+v, want the filter of others", a)
				}
				ours, their := count(), theirCount()
				mustSend(t, "192.0.2.9:9")
				if count() != ours+1 || theirCount() != their+1 {
					t.Errorf("ours saw %d packets, theirs %d; want 1 and 1", count()-ours, theirCount()-their)
				}
			}
			if err := r.k.drop(r.device()); err != nil {
				t.Fatal(err)
			}
			if d := r.device(); !d.clsact {
				t.Error("the clsact that others use is gone")
			}
			left, err := netlink.FilterList(mustLink(t, "v0"), tt.parent)
			if err != nil || len(left) != 1 || left[0].(*netlink.BpfFilter).Name != "theirs" {
				t.Errorf("filters %v, %v; want theirs", left, err)
			}
		})
	}
}

// A filter of ours goes before a BPF filter of the same preference, and to the
// next one where that is taken by another kind.
func TestClsactOrder(t *testing.T) {
	r, _ := newHookRig(t, true)
	r.mustClsact()
	theirs, _ := mustProgram(t, "theirs", 0)
	r.mustFilter(netlink.HANDLE_MIN_EGRESS, 1, theirs)
	if a := r.k.keep(r.device()); a.err != nil {
		t.Fatal(a.err)
	}
	filters := r.filters()
	if len(filters) != 2 || filters[0].(*netlink.BpfFilter).Name != ProgramName {
		t.Errorf("got %v, want ours first", filters)
	}
	if err := r.k.drop(r.device()); err != nil {
		t.Fatal(err)
	}

	other := []netlink.Filter{
		&netlink.U32{FilterAttrs: netlink.FilterAttrs{Priority: 1, Protocol: unix.ETH_P_ALL}},
		&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{Priority: 2, Protocol: unix.ETH_P_IP}},
		&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{Priority: 3, Protocol: unix.ETH_P_ALL}},
	}
	for n, want := range []uint16{1, 2, 3, 3} {
		if got := firstPreference(other[:n]); got != want {
			t.Errorf("after %v: got preference %d, want %d", other[:n], got, want)
		}
	}
}

// An ingress qdisc is where clsact would have to be.
func TestIngressInTheWay(t *testing.T) {
	r, _ := newHookRig(t, true)
	err := netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: r.device().index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if a := r.k.keep(r.device()); a.err == nil || !strings.Contains(a.err.Error(), "tc qdisc replace dev v0 clsact") {
		t.Errorf("got %+v, want the remedy", a)
	}
	if d := r.device(); !d.ingress || d.clsact {
		t.Error("the ingress qdisc of others was changed")
	}
}

func TestTCX(t *testing.T) {
	needTCX(t)
	r, count := newHookRig(t, false)
	theirs, theirCount := mustProgram(t, "theirs", 0)
	attach := func() {
		l, err := link.AttachTCX(link.TCXOptions{Interface: r.device().index, Program: theirs, Attach: ebpf.AttachTCXEgress})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	attach()
	for range 2 {
		a := r.k.keep(r.device())
		if a.err != nil || a.how != byTCX || len(a.foreign) != 1 || !strings.HasPrefix(a.foreign[0], "theirs (id ") {
			t.Fatalf("got %+v, want it attached by tcx beside theirs", a)
		}
	}
	own, _ := programID(r.k.program)
	if ids := tcxPrograms(r.device().index); len(ids) != 2 || ids[0] != own {
		t.Errorf("programs %v, want %d first", ids, own)
	}
	if d := r.device(); d.clsact {
		t.Error("clsact was added where tcx does")
	}
	ours, their := count(), theirCount()
	mustSend(t, "192.0.2.9:9")
	if count() != ours+1 || theirCount() != their+1 {
		t.Errorf("ours saw %d packets, theirs %d; want 1 and 1", count()-ours, theirCount()-their)
	}
	if a := r.k.present(r.device()); a.how != byTCX {
		t.Errorf("seen by others: got %+v, want tcx", a)
	}
	if err := r.k.drop(r.device()); err != nil {
		t.Fatal(err)
	}
	if ids := tcxPrograms(r.device().index); len(ids) != 1 || slices.Contains(ids, own) {
		t.Errorf("programs %v after it was dropped, want theirs alone", ids)
	}
}

// A device with the same index may come again: the link of the one before is
// dead.
func TestTCXOfDeviceThatWent(t *testing.T) {
	needTCX(t)
	r, count := newHookRig(t, false)
	if a := r.k.keep(r.device()); a.err != nil {
		t.Fatal(a.err)
	}
	index := r.device().index
	if err := netlink.LinkDel(mustLink(t, "v0")); err != nil {
		t.Fatal(err)
	}
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0", Index: index}, PeerName: "v0-peer"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Fatal(err)
	}
	mustUp(t, "v0")
	mustUp(t, "v0-peer")
	mustAddr(t, "v0", "192.0.2.1/24")
	mustNeighbour(t, "v0", "192.0.2.9")
	if got := r.device().index; got != index {
		t.Fatalf("index %d, want %d again", got, index)
	}
	if a := r.k.keep(r.device()); a.err != nil || a.how != byTCX {
		t.Fatalf("got %+v, want it attached anew", a)
	}
	before := count()
	mustSend(t, "192.0.2.9:9")
	if got := count(); got == before {
		t.Error("the program does not see the new device")
	}
}
