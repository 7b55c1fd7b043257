// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// perSecond is a rule of one connection each second, told apart by destination.
func perSecond(budget string) policy.PlaneRule {
	return policy.PlaneRule{
		Budget: budget, Per: policy.PerDestination,
		Interval: time.Second, MaxWait: 30 * time.Second, MaxQueue: 1000,
	}
}

// planeRig is a rig whose origin's port the kernel plane has, by the rules.
type planeRig struct {
	*rig
	origin *origin
	port   uint16
}

func newPlaneRig(t *testing.T, rules ...policy.PlaneRule) *planeRig {
	t.Helper()
	r := &planeRig{rig: newRig(t, Config{Lanes: 64}), origin: startOrigin(t)}
	r.port = netip.MustParseAddrPort(r.origin.at("127.0.0.1")).Port()
	for n := range uint32(16) {
		if ok, err := r.Plane().Spare(n + 1); err != nil || !ok {
			t.Fatalf("spare: %v, %v", ok, err)
		}
	}
	r.set(policy.PlaneSet{Rules: rules}, false)
	return r
}

// set makes the set that of the port at all loopback addresses.
func (r *planeRig) set(s policy.PlaneSet, failClosed bool) {
	r.t.Helper()
	r.apply(policy.Redirects{
		Prefixes: []policy.PrefixRedirect{{
			Prefix: netip.MustParsePrefix("127.0.0.0/8"), Port: r.port, Set: s, FailClosed: failClosed,
		}},
		Exits: []policy.Exit{{Name: "alias", Source: netip.MustParseAddr("127.0.0.9")}, {Name: "marked", Mark: 42}},
	})
}

func (r *planeRig) at(addr string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), r.port).String()
}

// lanes are those that the programs made since the last call.
func (r *planeRig) made() map[string]*ledger.Cell {
	r.t.Helper()
	out := make(map[string]*ledger.Cell)
	if err := r.Plane().Made(func(lane policy.LaneKey, cell uint32) error {
		out[lane.String()] = &r.Cells()[cell]
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// bound is a client that cannot be redirected: it has a device.
func (r *planeRig) bound() *client { return bindLo(r.agent.tcp4()) }

func bindLo(c *client) *client {
	c.t.Helper()
	c.do(agentCall{Op: "settext", FD: c.fd, Level: unix.SOL_SOCKET, Option: unix.SO_BINDTODEVICE, Text: "lo"})
	return c
}

func wantErrno(t *testing.T, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("connect: got %v, want %v", err, want)
	}
}

// What has room goes without the proxy, what has none goes to it.
func TestPlaneGrants(t *testing.T) {
	r := newPlaneRig(t, perSecond("db"))
	for _, addr := range []string{"127.0.0.1", "127.0.0.2"} {
		r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at(addr)) })
		r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at(addr)) })
		if _, flow := r.accept(); flow.Dest.String() != r.at(addr) {
			t.Errorf("flow to %s, want %s", flow.Dest, r.at(addr))
		}
	}
	lanes := r.made()
	for _, id := range []string{"db/127.0.0.1/-", "db/127.0.0.2/-"} {
		cell := lanes[id]
		if cell == nil {
			t.Fatalf("lanes made: got %v, want %s", lanes, id)
		}
		if got := cell.Granted.Load(); got != 1 {
			t.Errorf("lane %s: granted %d, want 1", id, got)
		}
		if got := cell.BaseInterval.Load(); got != uint64(time.Second) {
			t.Errorf("lane %s: base interval %d, want a second", id, got)
		}
	}
	if len(lanes) != 2 || len(r.made()) != 0 {
		t.Errorf("lanes made: got %d, want 2, each told once", len(lanes))
	}
	if d := r.destination(r.at("127.0.0.1")); d.Granted != 1 || d.Redirected != 1 || d.Untouched != 0 || d.Established != 2 {
		t.Errorf("destination: got %+v, want one granted and one redirected, both established", d)
	}
	if got, want := r.Plane().Spares(), int64(14); got != want {
		t.Errorf("spares: got %d, want %d", got, want)
	}
	// The same by IPv6 and mapped.
	r.through(GateRedirected, func() {
		r.agent.tcp6().mustConnect("[::ffff:127.0.0.1]:" + netip.MustParseAddrPort(r.at("127.0.0.1")).String()[len("127.0.0.1:"):])
	})
	r.accept()
}

func TestPlaneRefuses(t *testing.T) {
	impatient, dropped := perSecond("db"), perSecond("db")
	impatient.MaxWait = 10 * time.Millisecond
	dropped.MaxWait, dropped.Drop = 0, true
	short := perSecond("db")
	short.MaxQueue, short.Interval = 0, time.Minute
	for _, tt := range []struct {
		name  string
		rule  policy.PlaneRule
		open  func(r *planeRig) *client
		errno syscall.Errno
	}{
		{"who may not wait", impatient, func(r *planeRig) *client { return r.agent.tcp4() }, unix.ECONNREFUSED},
		{"as if nobody answered", dropped, func(r *planeRig) *client { return r.agent.tcp4() }, unix.ETIMEDOUT},
		{"where nobody may wait", short, func(r *planeRig) *client { return r.agent.tcp4() }, unix.ECONNREFUSED},
		{"what nobody can hold", perSecond("db"), (*planeRig).bound, unix.ECONNREFUSED},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newPlaneRig(t, tt.rule)
			r.through(GateGranted, func() { tt.open(r).mustConnect(r.at("127.0.0.1")) })
			wantErrno(t, tt.open(r).connect(r.at("127.0.0.1")), tt.errno)
			if got := r.gate("over"); got.Refused != 1 || got.Passed != 0 {
				t.Errorf("gate over: got %+v, want one refused", got)
			}
			if got := r.destination(r.at("127.0.0.1")).Refused; got != 1 {
				t.Errorf("destination: %d refused, want 1", got)
			}
		})
	}
}

// Over a budget while the daemon stands still: nobody would hold it.
func TestPlaneDaemonHangs(t *testing.T) {
	r := newPlaneRig(t, perSecond("db"))
	r.Beat(now() - ledger.Time(2*time.Second))
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.through("heartbeat", func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.set(policy.PlaneSet{Rules: []policy.PlaneRule{perSecond("db")}}, true)
	wantErrno(t, r.agent.tcp4().connect(r.at("127.0.0.1")), unix.ECONNREFUSED)
}

// Several budgets: all or none.
func TestPlaneAllOrNone(t *testing.T) {
	all := perSecond("all")
	all.Per, all.Interval, all.Tolerance = 0, 10*time.Second, 10*time.Second // two at once
	r := newPlaneRig(t, perSecond("db"), all)
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	lanes := r.made()
	db, whole := lanes["db/127.0.0.1/-"], lanes["all/-/-"]
	if db == nil || whole == nil {
		t.Fatalf("lanes made: got %v", lanes)
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
	if got := whole.Granted.Load(); got != 1 {
		t.Errorf("the other lane lost %d units to what was not granted", got-1)
	}
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.2")) })
	tat := db.TAT.Load()
	db.TAT.Store(0) // room in the first lane, none in the second
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
	if got := db.Granted.Load(); got != 1 {
		t.Errorf("the first lane granted %d, want what it gave taken back", got)
	}
	if got := db.TAT.Load(); got > uint64(now()) || tat == 0 {
		t.Errorf("the first lane is %v ahead", time.Duration(got-uint64(now())))
	}
}

// Lanes are told apart by exit, as far as connect() knows it.
func TestPlaneExits(t *testing.T) {
	rule := perSecond("db")
	rule.Per |= policy.PerExit
	r := newPlaneRig(t, rule)
	r.through(GateGranted, func() {
		r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42).bind("127.0.0.5:0").mustConnect(r.at("127.0.0.1"))
	})
	r.through(GateGranted, func() { r.agent.tcp4().bind("127.0.0.9:0").mustConnect(r.at("127.0.0.1")) })
	r.through(GateGranted, func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	var got []string
	for id := range r.made() {
		got = append(got, id)
	}
	slices.Sort(got)
	if want := []string{"db/127.0.0.1/alias", "db/127.0.0.1/direct", "db/127.0.0.1/marked"}; !slices.Equal(got, want) {
		t.Errorf("lanes: got %v, want %v", got, want)
	}
	// Which of the exits an unbound socket has, only its route tells.
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
}

// A lane that somebody waits in, or that needs a probe, is the proxy's.
func TestPlaneAsksProxy(t *testing.T) {
	r := newPlaneRig(t, perSecond("db"))
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	cell := r.made()["db/127.0.0.1/-"]
	for _, flag := range []uint64{1, 4} { // half open, queued
		cell.TAT.Store(0)
		cell.Flags.Store(flag)
		r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
		r.accept()
	}
	r.Beat(0)
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
}

func TestPlaneShadow(t *testing.T) {
	rule := perSecond("db")
	rule.Shadow = true
	r := newPlaneRig(t, rule)
	for range 3 {
		r.through(GateGranted, func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	}
	cell := r.made()["db/127.0.0.1/-"]
	if g, h := cell.Granted.Load(), cell.Held.Load(); g != 1 || h != 2 {
		t.Errorf("granted %d, would have held %d; want 1 and 2", g, h)
	}
}

// What goes around the proxy stays away while its lane is closed.
func TestPlaneGuards(t *testing.T) {
	r := newPlaneRig(t)
	guard := perSecond("store")
	guard.Guard, guard.Interval = true, 0
	r.set(policy.PlaneSet{Proxy: true, Rules: []policy.PlaneRule{guard}}, false)
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	lane := policy.LaneKey{Budget: "store", Destination: "127.0.0.1"}
	if n, err := r.Plane().Claim(lane, 40); n != 40 || err != nil {
		t.Fatalf("claim: got %d, %v; want 40", n, err)
	}
	cell := &r.Cells()[40]
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	cell.OpenUntil.Store(uint64(now()) + uint64(time.Minute))
	wantErrno(t, r.bound().connect(r.at("127.0.0.1")), unix.ECONNREFUSED)
	if got := r.gate("closed").Refused; got != 1 {
		t.Errorf("gate closed: %d refused, want 1", got)
	}
	// What the proxy can hold goes to it as ever; other lanes are open.
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.2")) })
	// A daemon that stands still closes nothing.
	r.Beat(0)
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	r.Beat(now() + ledger.Time(time.Hour))
	cell.OpenUntil.Store(uint64(now()))
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
	if got := cell.Granted.Load(); got != 0 {
		t.Errorf("guards took %d units", got)
	}
	if err := r.Plane().Release(lane); err != nil {
		t.Fatal(err)
	}
	cell.OpenUntil.Store(uint64(now()) + uint64(time.Minute))
	r.through("device", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
}

// Lanes belong to who makes them first, and their cell to both.
func TestPlaneClaim(t *testing.T) {
	r := newPlaneRig(t, perSecond("db"))
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	var first uint32
	lane := policy.LaneKey{Budget: "db", Destination: "127.0.0.1"}
	n, err := r.Plane().Claim(lane, 50)
	if err != nil || n == 50 || n == 0 {
		t.Fatalf("claim of a lane that the programs made: got %d, %v; want its own cell", n, err)
	}
	first = n
	if len(r.made()) != 0 {
		t.Error("a lane that was claimed is told as new")
	}
	if n, err = r.Plane().Claim(policy.LaneKey{Budget: "db", Destination: "127.0.0.3"}, 51); n != 51 || err != nil {
		t.Fatalf("claim: got %d, %v; want 51", n, err)
	}
	r.Cells()[51].TAT.Store(uint64(now()) + uint64(time.Minute))
	r.Cells()[51].Interval.Store(uint64(time.Second))
	wantErrno(t, r.bound().connect(r.at("127.0.0.3")), unix.ECONNREFUSED)
	for _, lane := range []policy.LaneKey{
		{Budget: "unheard", Destination: "127.0.0.1"},
		{Budget: "db", Destination: "127.0.0.1", Exit: "unheard"},
		{Budget: "db", Destination: "127.0.0.1", Session: "s"},
		{Budget: "db", Destination: "127.0.0.1", Path: "/"},
	} {
		if n, err := r.Plane().Claim(lane, 52); n != 52 || err != nil {
			t.Errorf("claim of %s: got %d, %v; want 52", lane, n, err)
		}
	}
	// Who does not want a lane that the programs made, ends it.
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.4")) })
	no := errors.New("no")
	if err := r.Plane().Made(func(policy.LaneKey, uint32) error { return no }); !errors.Is(err, no) {
		t.Errorf("made: got %v, want %v", err, no)
	}
	if n, err := r.Plane().Claim(policy.LaneKey{Budget: "db", Destination: "127.0.0.4"}, 53); n != 53 || err != nil {
		t.Errorf("claim after a lane was ended: got %d, %v; want 53", n, err)
	}
	if first == 53 {
		t.Error("a cell has two lanes")
	}
}

// Names of addresses decide where budgets name hosts.
func TestPlaneTargets(t *testing.T) {
	r := newPlaneRig(t)
	rule := perSecond("store")
	rule.ByName = true
	r.apply(policy.Redirects{Ports: []policy.PortRedirect{
		{Port: r.port, Local: true, Ask: true, Set: policy.PlaneSet{Proxy: true}},
	}})
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
	for _, addr := range []string{"127.0.0.1", "127.0.0.2"} {
		if err := r.SetTarget(netip.MustParseAddrPort(r.at(addr)), policy.PlaneTarget{
			Set: policy.PlaneSet{Rules: []policy.PlaneRule{rule}}, Name: "store.example",
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.through(GateGranted, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	// One name, one lane.
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.2")) })
	r.accept()
	if lanes := r.made(); len(lanes) != 1 || lanes["store/store.example/-"] == nil {
		t.Errorf("lanes: got %v, want that of the name", lanes)
	}
	if err := r.DeleteTarget(netip.MustParseAddrPort(r.at("127.0.0.1"))); err != nil {
		t.Fatal(err)
	}
	if got := r.Targets(); len(got) != 1 || got[0].String() != r.at("127.0.0.2") {
		t.Errorf("targets: got %v", got)
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
}

// Where no cell is left the proxy is asked, and without it nobody is refused.
func TestPlaneFull(t *testing.T) {
	r := newPlaneRig(t, perSecond("db"))
	for i := range 16 {
		r.through(GateGranted, func() {
			r.agent.tcp4().mustConnect(r.at(netip.AddrFrom4([4]byte{127, 0, 1, byte(i)}).String()))
		})
	}
	if got := r.Plane().Spares(); got != 0 {
		t.Fatalf("spares: %d, want none", got)
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(r.at("127.0.0.1")) })
	r.accept()
	r.through("full", func() { r.bound().mustConnect(r.at("127.0.0.1")) })
}

// Many processes at once: never more than the budget has.
func TestPlaneBound(t *testing.T) {
	rule := perSecond("db")
	rule.Interval, rule.Tolerance = 5*time.Millisecond, 20*time.Millisecond // burst 5
	r := newPlaneRig(t, rule)
	begin := now()
	var wg sync.WaitGroup
	for range 4 {
		a := startAgent(t, r.cgroup, syscall.SysProcAttr{})
		wg.Go(func() {
			for range 100 {
				c := bindLo(a.tcp4())
				_ = c.connect(r.at("127.0.0.1")) // granted or refused
				c.close()
			}
		})
	}
	wg.Wait()
	took := now() - begin
	granted, over := r.gate(GateGranted).Passed, r.gate("over").Refused
	if granted+over != 400 {
		t.Errorf("granted %d and refused %d, want 400 in all", granted, over)
	}
	if bound := 5 + uint64(took)/uint64(rule.Interval) + 1; granted > bound || granted < 5 {
		t.Errorf("granted %d in %v, want 5 to %d", granted, time.Duration(took), bound)
	}
	if lanes := r.made(); len(lanes) != 1 || lanes["db/127.0.0.1/-"].Granted.Load() != granted {
		t.Errorf("lanes: got %v, want one that granted %d", lanes, granted)
	}
	if left := r.Plane().Spares(); left != 15 {
		t.Errorf("spares: %d, want 15: who lost a race gives its cell back", left)
	}
}
