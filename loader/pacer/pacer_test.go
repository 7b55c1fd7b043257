// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// told collects the states that a Pacer tells.
type told struct {
	mu   sync.Mutex
	list []State
}

func (s *told) add(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, state)
}

func (s *told) last() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return State{}
	}
	return s.list[len(s.list)-1]
}

func mustOpen(t *testing.T, cfg Config) (*Pacer, *told) {
	t.Helper()
	states := new(told)
	cfg.Changed = states.add
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, states
}

// find is the device of that name in a state.
func (s State) find(name string) (Device, bool) {
	for _, d := range s.Devices {
		if d.Name == name {
			return d, true
		}
	}
	return Device{}, false
}

func (s State) paces(name string) bool {
	d, _ := s.find(name)
	return d.Paced
}

// Without fq nothing is promised, and nothing is changed.
func TestOpenWithoutFQ(t *testing.T) {
	mustNetns(t)
	mustVeth(t, "v0", "192.0.2.1/24")
	mustRoute(t, "0.0.0.0/0", "v0", 0)
	program, _ := mustProgram(t, ProgramName, 0)
	before := qdiscs(t, "v0")
	p, states := mustOpen(t, Config{Program: program})
	state := p.State()
	if !reflect.DeepEqual(states.last(), state) {
		t.Errorf("told %+v within Open, state is %+v", states.last(), state)
	}
	if state.Ready || state.Horizon != 0 || state.Outside != nil {
		t.Errorf("got %+v, want nothing that is ready", state)
	}
	want := Device{
		Name: "v0", Index: mustLink(t, "v0").Attrs().Index, Qdisc: "noqueue", Routed: true, Default: true, Why: "its qdisc is noqueue, not fq",
	}
	if d, _ := state.find("v0"); !reflect.DeepEqual(d, want) {
		t.Errorf("got %+v, want %+v", d, want)
	}

	// A second device is seen to come, to change and to go.
	mustVeth(t, "v1", "198.51.100.1/24")
	eventually(t, "v1 is known", func() bool { d, ok := states.last().find("v1"); return ok && d.Routed && !d.Default })
	mustQdisc(t, "v1", plain)
	eventually(t, "its qdisc is known", func() bool { d, _ := states.last().find("v1"); return d.Qdisc == "pfifo_fast" })
	if err := netlink.LinkSetDown(mustLink(t, "v1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "v1 is down", func() bool { _, ok := states.last().find("v1"); return !ok })
	mustUp(t, "v1")
	eventually(t, "v1 is up", func() bool { _, ok := states.last().find("v1"); return ok })
	if err := netlink.LinkDel(mustLink(t, "v1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "v1 is gone", func() bool { _, ok := states.last().find("v1"); return !ok })

	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if after := qdiscs(t, "v0"); !slices.Equal(after, before) {
		t.Errorf("qdiscs were %v, are %v", before, after)
	}
	if last := states.last(); !reflect.DeepEqual(last, State{}) {
		t.Errorf("told %+v at the end, want nothing", last)
	}
}

// Where the kernel has no fq, each device says so, and the qdiscs stay.
func TestInstallWhatIsNotThere(t *testing.T) {
	mustNetns(t)
	if hasFQ(t) {
		t.Skip("this kernel has sch_fq: TestInstall shows that it is used")
	}
	mustTun(t, "t0", 1, "192.0.2.1/24")
	mustTun(t, "t1", 2, "198.51.100.1/24")
	before := [][]string{qdiscs(t, "t0"), qdiscs(t, "t1")}
	program, _ := mustProgram(t, ProgramName, 0)
	p, states := mustOpen(t, Config{Program: program, Install: true})
	for i, name := range []string{"t0", "t1"} {
		if d, _ := p.State().find(name); !strings.HasPrefix(d.Why, "this kernel has no qdisc fq") || d.Ours {
			t.Errorf("%s: got %+v, want that the kernel has no fq", name, d)
		}
		if after := qdiscs(t, name); !slices.Equal(after, before[i]) {
			t.Errorf("%s: qdiscs were %v, are %v", name, before[i], after)
		}
	}
	// What comes later says so without another attempt.
	mustTun(t, "t2", 2, "203.0.113.1/24")
	eventually(t, "t2 is known", func() bool {
		d, _ := states.last().find("t2")
		return strings.HasPrefix(d.Why, "this kernel has no qdisc fq")
	})
}

// The namespace is that of Open's caller, whoever is where later.
func TestOpenElsewhere(t *testing.T) {
	mustNetns(t)
	mustVeth(t, "elsewhere", "192.0.2.1/24")
	opened := make(chan *Pacer)
	var states told
	path := mustNamespaceFile(t)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends
		ns, err := os.Open(path)
		if err != nil {
			t.Error(err)
			close(opened)
			return
		}
		defer ns.Close()
		if _, err := enter(ns); err != nil {
			t.Error(err)
			close(opened)
			return
		}
		p, err := Open(Config{Changed: states.add})
		if err != nil {
			t.Error(err)
			close(opened)
			return
		}
		opened <- p
	}()
	p := <-opened
	if p == nil {
		t.FailNow()
	}
	if _, ok := p.State().find("elsewhere"); !ok {
		t.Errorf("got %+v, want the device of the namespace", p.State())
	}
	mustAddr(t, "elsewhere", "198.51.100.1/24")
	mustVeth(t, "another", "203.0.113.1/24")
	eventually(t, "the second device is known", func() bool { _, ok := states.last().find("another"); return ok })
	looked, err := Look(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(looked.Devices, p.State().Devices) {
		t.Errorf("looked: got %+v, want %+v", looked.Devices, p.State().Devices)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// mustNamespaceFile names the namespace of the test's thread so that other
// threads can open it.
func mustNamespaceFile(t *testing.T) string {
	t.Helper()
	target, err := os.Readlink("/proc/thread-self")
	if err != nil {
		t.Fatal(err)
	}
	return "/proc/" + target + "/ns/net"
}

// Where fq is, the program goes, and the state tells what leaves by it.
func TestOpenWithFQ(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		name := byTCX
		if noTCX {
			name = byClsact
		}
		t.Run(name, func(t *testing.T) {
			if !noTCX {
				needTCX(t)
			}
			mustNetns(t)
			needFQ(t)
			mustVeth(t, "v0", "192.0.2.1/24")
			mustVeth(t, "v1", "198.51.100.1/24")
			mustRoute(t, "0.0.0.0/0", "v0", 0)
			mustQdisc(t, "v0", fqFor(7*time.Second))
			mustNeighbour(t, "v0", "192.0.2.9")
			program, count := mustProgram(t, ProgramName, 0)
			p, states := mustOpen(t, Config{Program: program, noTCX: noTCX})
			state := p.State()
			d, _ := state.find("v0")
			if !state.Ready || state.Horizon != 7*time.Second || !d.Paced || d.Attached != name || d.Ours {
				t.Fatalf("got %+v, want v0 paced by %s for 7 s", state, name)
			}
			for _, want := range prefixes("127.0.0.0/8", "192.0.2.1/32", "198.51.100.0/24", "::1/128") {
				if !slices.Contains(state.Outside, want) {
					t.Errorf("outside is %v, want %v in it", state.Outside, want)
				}
			}
			if slices.Contains(state.Outside, netip.MustParsePrefix("0.0.0.0/0")) {
				t.Errorf("outside is %v, want the rest inside", state.Outside)
			}
			before := count()
			mustSend(t, "192.0.2.9:9")
			if count() == before {
				t.Error("the program does not see what leaves")
			}
			looked, err := Look(mustNamespaceFile(t))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(looked, state) {
				t.Errorf("looked: got %+v, want %+v", looked, state)
			}

			// An address of its own is outside as soon as it is there.
			mustAddr(t, "v0", "192.0.2.77/24")
			eventually(t, "the new address is outside", func() bool {
				return slices.Contains(states.last().Outside, netip.MustParsePrefix("192.0.2.77/32"))
			})
			// Somebody takes fq away, and gives it back.
			mustQdisc(t, "v0", plain)
			eventually(t, "nothing is ready", func() bool { return !states.last().Ready && states.last().Outside == nil })
			before = count()
			mustSend(t, "192.0.2.9:9")
			if count() != before {
				t.Error("the program is still where no fq is")
			}
			mustQdisc(t, "v0", fqFor(3*time.Second))
			eventually(t, "v0 is paced again", func() bool { return states.last().paces("v0") && states.last().Horizon == 3*time.Second })
			// A default route by the other device.
			mustRoute(t, "0.0.0.0/0", "v1", 100)
			eventually(t, "the default route is outside", func() bool { return !states.last().Ready })
			if err := netlink.LinkDel(mustLink(t, "v1")); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is not any more", func() bool { return states.last().Ready })

			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(states.last(), State{}) {
				t.Errorf("told %+v at the end, want nothing", states.last())
			}
			mustClean(t, "v0")
			if words := strings.Join(qdiscs(t, "v0"), "\n"); strings.Contains(words, "clsact") || !strings.Contains(words, "fq") {
				t.Errorf("qdiscs are %s, want fq alone", words)
			}
		})
	}
}

// mustClean sees to it that no program of ours is at a device.
func mustClean(t *testing.T, name string) {
	t.Helper()
	s, err := newSurveyor()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	found, _, err := s.look(true)
	if err != nil {
		t.Fatal(err)
	}
	d := found.links[mustLink(t, name).Attrs().Index]
	k := hooks{h: s.h}
	if a := k.present(d); a.how != "" || a.err != nil || d.isOurs() {
		t.Errorf("%s: left are program %+v, qdisc %+v", name, a, d.root)
	}
}

// A packet that is given a time waits for it, also where programs of others
// look at it afterwards.
func TestTimeHolds(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		mustNetns(t)
		needFQ(t)
		mustVeth(t, "v0", "192.0.2.1/24")
		mustNeighbour(t, "v0", "192.0.2.9")
		mustQdisc(t, "v0", fqFor(time.Minute))
		const ahead = 300 * time.Millisecond
		program, _ := mustProgram(t, ProgramName, ahead)
		p, _ := mustOpen(t, Config{Program: program, noTCX: noTCX})
		s, err := newSurveyor()
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		theirs, theirCount := mustProgram(t, "theirs", 0)
		d := device{name: "v0", index: mustLink(t, "v0").Attrs().Index}
		if err := netlink.QdiscAdd(newClsact(&d)); err != nil && !errors.Is(err, unix.EEXIST) {
			t.Fatal(err)
		}
		r := hookRig{t: t, s: s, k: &hooks{h: s.h}}
		r.mustFilter(netlink.HANDLE_MIN_EGRESS, 9, theirs)
		arrived := mustListen(t, "v0-peer")
		began, sent := time.Now(), theirCount()
		mustSend(t, "192.0.2.9:9")
		if err := <-arrived; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < ahead {
			t.Errorf("noTCX %v: the packet took %v, want %v at least", noTCX, took, ahead)
		}
		if theirCount() == sent {
			t.Errorf("noTCX %v: the program of others did not see it", noTCX)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// mustListen tells when a packet of mustSend arrives at a device.
func mustListen(t *testing.T, name string) <-chan error {
	t.Helper()
	protocol := nl.Swap16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: mustLink(t, name).Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	limit := unix.NsecToTimeval(deadline.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := unix.Read(fd, buf)
			if err != nil || bytes.Contains(buf[:max(n, 0)], []byte(payload)) {
				result <- err
				return
			}
		}
	}()
	return result
}
