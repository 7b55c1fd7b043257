// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// Other lives of this test binary, chosen by the variable.
const (
	lifeEnv = "EGRESSD_TEST_LIFE"

	lifeHolder       = "holder"       // attaches to the cgroup given and waits
	lifeUnprivileged = "unprivileged" // opens a kernel without capabilities
	lifeCanary       = "canary"       // connects to the address given
)

func otherLife(kind string) {
	switch kind {
	case lifeHolder:
		k, err := Open(Config{Cgroups: []string{os.Args[1]}, PinDir: os.Args[2]})
		if err == nil {
			err = k.Attach()
		}
		fmt.Println("holder:", err)
		for { // an empty select would be a deadlock to the runtime
			time.Sleep(time.Hour)
		}
	case lifeUnprivileged:
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			panic(err)
		}
		_, err := Open(Config{})
		fmt.Printf("%t %v\n", errors.Is(err, ErrPrivileges), err)
	case lifeCanary:
		conn, err := net.DialTimeout("tcp", os.Args[1], 5*time.Second)
		if err == nil {
			conn.Close()
		}
	}
	os.Exit(0)
}

func lifeCommand(kind string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), lifeEnv+"="+kind, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	return cmd
}

// bpffs mounts a BPF file system for one test.
func bpffs(t testing.TB) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// attached counts the programs of all hooks at a cgroup.
func attached(t testing.TB, cgroup string) int {
	t.Helper()
	dir, err := openCgroup(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	n := 0
	for _, h := range new(Kernel).hooks() {
		result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: h.attach})
		if err != nil {
			t.Fatal(err)
		}
		n += len(result.Programs)
	}
	return n
}

func TestAttachDetach(t *testing.T) {
	root, name := testCgroup(t)
	cgroup := cgroupDir(root, name)
	k := openKernel(t, Config{Cgroups: []string{name}})
	if n := attached(t, cgroup); n != 0 {
		t.Errorf("programs after Open: got %d, want 0", n)
	}
	if err := k.Attach(); err != nil {
		t.Fatal(err)
	}
	if n, want := attached(t, cgroup), len(k.hooks()); n != want {
		t.Errorf("programs after Attach: got %d, want %d", n, want)
	}
	if err := k.Attach(); err == nil {
		t.Error("Attach twice: got no error")
	}

	second := openKernel(t, Config{Cgroups: []string{name}})
	err := second.Attach()
	if !errors.Is(err, ErrBusy) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Attach of a second daemon: got %v, want one line of ErrBusy", err)
	}
	if n, want := attached(t, cgroup), len(k.hooks()); n != want {
		t.Errorf("programs after a second daemon tried: got %d, want %d", n, want)
	}

	if err := k.Detach(); err != nil {
		t.Fatal(err)
	}
	if n := attached(t, cgroup); n != 0 {
		t.Errorf("programs after Detach: got %d, want 0", n)
	}
	if err := k.Detach(); err != nil {
		t.Errorf("Detach twice: %v", err)
	}
	if err := second.Attach(); err != nil {
		t.Errorf("Attach after the first daemon left: %v", err)
	}
	if err := k.Attach(); !errors.Is(err, ErrBusy) {
		t.Errorf("Attach again while another holds the cgroup: got %v, want ErrBusy", err)
	}
}

func TestAttachAllOrNone(t *testing.T) {
	root, name := testCgroup(t)
	k := openKernel(t, Config{Cgroups: []string{name, name + "-missing"}})
	if err := k.Attach(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Attach with a missing cgroup: got %v, want that it does not exist", err)
	}
	if n := attached(t, cgroupDir(root, name)); n != 0 {
		t.Errorf("programs after a failed Attach: got %d, want 0", n)
	}
}

func TestForeignProgramsAreLogged(t *testing.T) {
	root, name := testCgroup(t)
	cgroup := cgroupDir(root, name)
	if err := os.Mkdir(cgroup+"/below", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, cgroup+"/below") })
	outer := openKernel(t, Config{Cgroups: []string{name}})
	if err := outer.Attach(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	inner := openKernel(t, Config{Cgroups: []string{name + "/below"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := inner.Attach(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"program=connect4", "program=connect6"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log: got %q, want %s in it", log.String(), want)
		}
	}
}

// A daemon that is killed leaves nothing behind but what is pinned.
func TestKilled(t *testing.T) {
	root, name := testCgroup(t)
	cgroup, pins := cgroupDir(root, name), bpffs(t)
	holder := lifeCommand(lifeHolder, name, pins)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer holder.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holder: <nil>\n" {
		t.Fatalf("holder says %q, %v", line, err)
	}
	k := openKernel(t, Config{Cgroups: []string{name}})
	if n, want := attached(t, cgroup), len(k.hooks()); n != want {
		t.Errorf("programs of the holder: got %d, want %d", n, want)
	}
	if err := k.Attach(); !errors.Is(err, ErrBusy) {
		t.Errorf("Attach beside the holder: got %v, want ErrBusy", err)
	}
	if _, err := Open(Config{PinDir: pins}); !errors.Is(err, ErrBusy) {
		t.Errorf("Open of the holder's ledger: got %v, want ErrBusy", err)
	}
	stale := filepath.Join(cgroup, canaryPrefix+"1-0")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	holder.Wait()
	for range 200 { // the kernel frees links after the process is reaped
		if attached(t, cgroup) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := attached(t, cgroup); n != 0 {
		t.Errorf("programs after the holder was killed: got %d, want 0", n)
	}
	if err := k.Attach(); err != nil {
		t.Errorf("Attach after the holder was killed: %v", err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("stale canary cgroup after Attach: got %v, want that it is gone", err)
	}
	openKernel(t, Config{PinDir: pins})
}

func TestUnprivileged(t *testing.T) {
	needRoot(t)
	out, err := lifeCommand(lifeUnprivileged).Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = "true not enough privileges: run as root, or with the missing CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN\n"
	if string(out) != want {
		t.Errorf("Open without capabilities: got %q, want %q", out, want)
	}
}

func TestPinned(t *testing.T) {
	needRoot(t)
	pins := bpffs(t)
	key := policy.LaneKey{Budget: "store", Destination: "store.example.com", Exit: "direct"}
	k := openKernel(t, Config{PinDir: filepath.Join(pins, "egressd"), Lanes: 8})
	k.Cells()[5].OpenUntil.Store(12345)
	if err := k.Index().Put(key, 5); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}

	k = openKernel(t, Config{PinDir: filepath.Join(pins, "egressd"), Lanes: 8})
	if got := k.Cells()[5].OpenUntil.Load(); got != 12345 {
		t.Errorf("cooldown after reopening: got %d, want 12345", got)
	}
	if got, want := lanes(t, k.Index()), map[policy.LaneKey]uint32{key: 5}; !reflect.DeepEqual(got, want) {
		t.Errorf("lanes after reopening: got %v, want %v", got, want)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}

	_, err := Open(Config{PinDir: filepath.Join(pins, "egressd"), Lanes: 16})
	if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), filepath.Join(pins, "egressd", layoutVersion)) {
		t.Errorf("Open with another number of lanes: got %v, want ErrLayout and the directory", err)
	}

	other := openKernel(t, Config{Lanes: 8}) // private
	if got := other.Cells()[5].OpenUntil.Load(); got != 0 {
		t.Errorf("cell of a private ledger: got %d, want 0", got)
	}
}

func TestPinDirElsewhere(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	_, err := Open(Config{PinDir: filepath.Join(dir, "egressd")})
	if !errors.Is(err, ErrNoBPFFS) || !strings.Contains(err.Error(), "mount -t bpf bpf /sys/fs/bpf") {
		t.Errorf("Open: got %v, want ErrNoBPFFS with the remedy", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("directory after a failed Open: got %v, %v; want nothing in it", left, err)
	}
}

// lanes reads the whole index.
func lanes(t testing.TB, x policy.Index) map[policy.LaneKey]uint32 {
	t.Helper()
	got := make(map[policy.LaneKey]uint32)
	if err := x.Range(func(key policy.LaneKey, cell uint32) bool {
		got[key] = cell
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestIndex(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{Lanes: 4})
	x := k.Index()
	// The same text in other parts is another lane.
	keys := []policy.LaneKey{
		{Budget: "a", Destination: "b", Exit: "c"},
		{Budget: "ab", Destination: "", Exit: "c"},
		{Budget: "a", Destination: "b", Exit: "c", Session: "s", Path: "/p;q"},
		{Budget: "store", Destination: strings.Repeat("d", 253), Exit: strings.Repeat("e", 300)},
	}
	want := make(map[policy.LaneKey]uint32)
	for i, key := range keys {
		if err := x.Put(key, uint32(i)); err != nil {
			t.Fatal(err)
		}
		want[key] = uint32(i)
	}
	if got := lanes(t, x); !reflect.DeepEqual(got, want) {
		t.Errorf("lanes: got %v, want %v", got, want)
	}
	if err := x.Put(policy.LaneKey{Budget: "one more"}, 9); !errors.Is(err, ErrIndexFull) {
		t.Errorf("Put into a full index: got %v, want ErrIndexFull", err)
	}
	if err := x.Put(keys[0], 7); err != nil {
		t.Errorf("Put of a lane that is there: %v", err)
	}
	want[keys[0]] = 7
	for range 2 {
		if err := x.Delete(keys[1]); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	delete(want, keys[1])
	if got := lanes(t, x); !reflect.DeepEqual(got, want) {
		t.Errorf("lanes after Put and Delete: got %v, want %v", got, want)
	}
	if err := x.Put(policy.LaneKey{Exit: strings.Repeat("x", 601)}, 1); err == nil {
		t.Error("Put of a name too long: got no error")
	}
	// A record that says something else than its hash is not believed.
	broken := egressLaneHash{Bytes: [16]byte{1}}
	if err := k.objs.Lanes.Put(&broken, &egressLane{BudgetLen: 600, ExitLen: 600}); err != nil {
		t.Fatal(err)
	}
	calls := 0
	if err := x.Range(func(key policy.LaneKey, _ uint32) bool {
		calls++
		if err := x.Delete(key); err != nil {
			t.Errorf("Delete during Range: %v", err)
		}
		return calls < 2
	}); err != nil || calls != 2 {
		t.Errorf("Range until false: got %d calls, %v; want 2", calls, err)
	}
	if got := len(lanes(t, x)); got != 1 {
		t.Errorf("lanes left: got %d, want 1", got)
	}
	if got := entries(t, k.objs.Lanes); got != 1 {
		t.Errorf("records left: got %d, want 1", got)
	}
}

func FuzzDecodeLane(f *testing.F) {
	f.Add([]byte("storestore.example.comdirect"), uint16(5), uint16(17), uint16(6))
	f.Add([]byte{}, uint16(0), uint16(0), uint16(0))
	f.Add([]byte("x"), uint16(600), uint16(1), uint16(0))
	f.Add([]byte("x"), uint16(65535), uint16(65535), uint16(65535))
	f.Fuzz(func(t *testing.T, names []byte, budget, destination, exit uint16) {
		value := &egressLane{Cell: 7, BudgetLen: budget, DestinationLen: destination, ExitLen: exit}
		n := copy(value.Names[:], names)
		key, ok := decodeLane(value)
		if total := int(budget) + int(destination) + int(exit); ok != (total <= len(value.Names)) {
			t.Fatalf("lengths %d, %d, %d: got %t", budget, destination, exit, ok)
		}
		if !ok {
			return
		}
		again, ok := encodeLane(key, 7)
		if back, ok2 := decodeLane(again); !ok || !ok2 || back != key {
			t.Errorf("%q of %d bytes: got %q back", key, n, back)
		}
	})
}

// The structs of Go are those of the object, to the byte.
func TestLayout(t *testing.T) {
	spec, err := loadEgress()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]any{
		"addr": egressAddr{}, "backlog": egressBacklog{}, "control": egressControl{}, "dest": egressDest{},
		"dest_key": egressDestKey{}, "enrolment": egressEnrolment{}, "exit_device": egressExitDevice{},
		"exit_rule": egressExitRule{}, "flow": egressFlow{}, "flow_key": egressFlowKey{},
		"gate_count": egressGateCount{}, "lane": egressLane{}, "lane_hash": egressLaneHash{},
		"negative_key": egressNegativeKey{}, "prefix": egressPrefix{}, "prefix_port": egressPrefixPort{},
		"udp_dest": egressUdpDest{},
		"cell":     ledger.Cell{},
	} {
		var c *btf.Struct
		if err := spec.Types.TypeByName(name, &c); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		typ := reflect.TypeOf(value)
		if uintptr(c.Size) != typ.Size() {
			t.Errorf("%s: got %d bytes in Go, want %d", name, typ.Size(), c.Size)
		}
		var fields []reflect.StructField
		for field := range typ.Fields() {
			if field.Type.Size() > 0 {
				fields = append(fields, field)
			}
		}
		if len(fields) != len(c.Members) {
			t.Errorf("%s: got %d fields in Go, want %d", name, len(fields), len(c.Members))
			continue
		}
		for i, m := range c.Members {
			if name != "addr" && name != "cell" && m.Name != "" && !sameName(fields[i].Name, m.Name) {
				t.Errorf("%s: got %s as field %d in Go, want %s", name, fields[i].Name, i, m.Name)
			}
			if uintptr(m.Offset.Bytes()) != fields[i].Offset {
				t.Errorf("%s.%s: got offset %d in Go, want %d", name, m.Name, fields[i].Offset, m.Offset.Bytes())
			}
		}
	}
	if got := spec.Maps[egressMapGates].MaxEntries; int(got) != len(gateNames) {
		t.Errorf("gates: got %d names in Go, want %d", len(gateNames), got)
	}
	var gates *btf.Enum
	if err := spec.Types.TypeByName("gate", &gates); err != nil {
		t.Fatal(err)
	}
	for _, v := range gates.Values {
		name := strings.ToLower(strings.TrimPrefix(v.Name, "GATE_"))
		if name != "max" && gateNames[v.Value] != name {
			t.Errorf("gate %d: got %s in Go, want %s", v.Value, gateNames[v.Value], name)
		}
	}
}

// sameName compares a name of Go with one of C.
func sameName(goName, c string) bool {
	return strings.EqualFold(goName, strings.ReplaceAll(c, "_", ""))
}

// Words of a cell have the same order in both languages.
func TestCellWords(t *testing.T) {
	spec, err := loadEgress()
	if err != nil {
		t.Fatal(err)
	}
	var c *btf.Struct
	if err := spec.Types.TypeByName("cell", &c); err != nil {
		t.Fatal(err)
	}
	typ := reflect.TypeOf(ledger.Cell{})
	for i, m := range c.Members {
		if name := typ.Field(i).Name; name != "_" && !sameName(name, m.Name) {
			t.Errorf("word %d: got %s in Go, want %s", i, name, m.Name)
		}
	}
}

func TestCanary(t *testing.T) {
	r := newRig(t, Config{})
	argv := []string{"/usr/bin/env", lifeEnv + "=" + lifeCanary, "GORACE=atexit_sleep_ms=0", "/proc/self/exe", "127.102.0.1:9"}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv[3] = exe
	dest := netip.MustParseAddrPort("127.102.0.1:9")
	canary := func() Canary {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		results, err := r.Canary(ctx, argv, dest)
		if err != nil {
			t.Fatal(err)
		}
		if len(results) != 1 {
			t.Fatalf("canary: got %d results, want 1", len(results))
		}
		return results[0]
	}
	want := Canary{Cgroup: r.cgroup, Child: true, Gate: GateRedirected}
	if got := canary(); got != want || !got.Redirected() {
		t.Errorf("canary: got %+v, want %+v", got, want)
	}
	if _, flow := r.accept(); flow.Dest != dest {
		t.Errorf("canary's flow: got %+v, want destination %s", flow, dest)
	}
	r.Beat(0)
	want.Gate = "heartbeat"
	if got := canary(); got != want || got.Redirected() {
		t.Errorf("canary without heartbeat: got %+v, want %+v", got, want)
	}
	if err := r.Exclude([]string{r.name}); err != nil {
		t.Fatal(err)
	}
	want.Gate = "excluded"
	if got := canary(); got != want {
		t.Errorf("canary in an excluded cgroup: got %+v, want %+v", got, want)
	}
	// A hook that is gone behind the daemon's back.
	for _, l := range r.links {
		l.Close()
	}
	want.Gate = ""
	if got := canary(); got != want {
		t.Errorf("canary without hooks: got %+v, want %+v", got, want)
	}
	if got := r.destination(dest.String()); got.Attempts() != 0 {
		t.Errorf("canary's destination: got %+v, want no counts", got)
	}
	argv = []string{"/bin/sh", "-c", "echo no such thing >&2; exit 3"}
	if _, err := r.Canary(t.Context(), argv, dest); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("canary that fails: got %v, want what it said", err)
	}
	left, err := filepath.Glob(r.cgroup + "/*/")
	if err != nil || len(left) != 0 {
		t.Errorf("cgroups after canaries: got %v, %v; want none", left, err)
	}
}

func TestSweep(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	first := r.agent.tcp4().mustConnect("192.0.2.1:8080")
	at := now()
	r.agent.tcp4().mustConnect("192.0.2.1:8080")
	// Closed, but what it sent waits: the record must stay.
	first.call("send", 5)
	first.close()
	if got := r.Pending(); got != 2 {
		t.Errorf("pending: got %d, want 2", got)
	}
	if got := r.Sweep(at.Add(9 * time.Second)); got != 0 {
		t.Errorf("swept after 9 s: got %d, want 0", got)
	}
	conn, _ := r.accept()
	if n, err := conn.Read(make([]byte, 10)); n != 5 {
		t.Errorf("read from a client that left: got %d bytes, %v; want 5", n, err)
	}
	if got := r.Sweep(at.Add(20 * time.Second)); got != 1 {
		t.Errorf("swept after 20 s: got %d, want 1", got)
	}
	if got, left := r.Pending(), entries(t, r.objs.Flows); got != 0 || left != 0 {
		t.Errorf("after the sweep: got %d pending and %d records, want none", got, left)
	}
	late, err := r.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if _, ok := r.Take(r.netns, netip.MustParseAddrPort(late.LocalAddr().String()), netip.AddrPort{}); ok {
		t.Error("a flow was taken after it was swept")
	}
}

// Many connections leave nothing behind: no record, no pending count, no file.
func TestNoLeak(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	const n = 10_000
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := files()
	done := make(chan int)
	go func() {
		taken := 0
		for taken < n {
			conn, err := r.listener.Accept()
			if err != nil {
				break
			}
			local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
			if _, ok := r.Take(r.netns, local, netip.AddrPort{}); ok {
				taken++
			}
			conn.Close()
		}
		done <- taken
	}()
	r.enrol(1 << 20)
	if got := r.agent.do(agentCall{Op: "churn", Family: unix.AF_INET, Value: n, Addr: netip.MustParseAddrPort("192.0.2.1:8080")}).N; got != n {
		t.Fatalf("connected: got %d, want %d", got, n)
	}
	if got := <-done; got != n {
		t.Errorf("taken: got %d, want %d", got, n)
	}
	if got := r.gate(GateRedirected).Passed; got != n {
		t.Errorf("redirected: got %d, want %d", got, n)
	}
	if got, left := r.Pending(), entries(t, r.objs.Flows); got != 0 || left != 0 {
		t.Errorf("left: got %d pending and %d records, want none", got, left)
	}
	d := r.destination("192.0.2.1:8080")
	if d.Redirected != n || d.Established != n {
		t.Errorf("destination: got %+v, want %d redirected and established", d, n)
	}
	if got := files(); got > before {
		t.Errorf("open files: got %d, want %d as before", got, before)
	}
}

func TestEnrolLimits(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	n := len(k.backlogs)
	for i := range n {
		if err := k.Enrol(uint64(1000+i), 80, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Enrol(1, 80, 1); !errors.Is(err, ErrNetnsFull) {
		t.Errorf("Enrol of one too many: got %v, want ErrNetnsFull", err)
	}
	if err := k.Enrol(1000, 81, 2); err != nil {
		t.Errorf("Enrol again: %v", err)
	}
	if err := k.Withdraw(1001); err != nil {
		t.Fatal(err)
	}
	if err := k.Enrol(1, 80, 1); err != nil {
		t.Errorf("Enrol after Withdraw: %v", err)
	}
	if got := entries(t, k.objs.Enrolments); got != n {
		t.Errorf("enrolled: got %d, want %d", got, n)
	}
}

// Close gives back whatever Open took.
func TestCloseFreesAll(t *testing.T) {
	needRoot(t)
	ids := func() map[ebpf.ProgramID]bool {
		found := make(map[ebpf.ProgramID]bool)
		for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
			found[id] = true
		}
		return found
	}
	before := ids()
	k, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var ours []ebpf.ProgramID
	for _, h := range k.hooks() {
		info, err := h.program.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		if before[id] {
			t.Errorf("program %d was there before", id)
		}
		ours = append(ours, id)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Errorf("Close twice: %v", err)
	}
	for range 200 { // programs are freed after a grace period
		if after := ids(); !after[ours[0]] && !after[ours[len(ours)-1]] {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("programs %v are still there after Close", ours)
}
