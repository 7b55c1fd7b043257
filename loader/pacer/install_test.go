// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
)

// fq is installed where the kernel chose the qdisc, and only there, and
// afterwards every qdisc is as it was.
func TestInstall(t *testing.T) {
	mustNetns(t)
	needFQ(t)
	mustTun(t, "one", 1, "192.0.2.1/24")
	mustTun(t, "many", 3, "198.51.100.1/24")
	mustVeth(t, "bare", "203.0.113.1/24")   // no queue, no default route
	mustVeth(t, "exit", "10.1.0.1/24")      // no queue
	mustVeth(t, "set", "10.2.0.1/24")       // configured
	mustVeth(t, "theirs", "10.3.0.1/24")    // with an fq of somebody
	mustTun(t, "unused", 1, "10.99.0.1/32") // no route
	mustQdisc(t, "set", plain)
	mustQdisc(t, "theirs", fqFor(5*time.Second))
	mustRoute(t, "0.0.0.0/0", "exit", 0)
	names := []string{"one", "many", "bare", "exit", "set", "theirs", "unused", "lo"}
	before := make(map[string][]string)
	for _, name := range names {
		before[name] = qdiscs(t, name)
	}
	program, _ := mustProgram(t, ProgramName, 0)
	p, states := mustOpen(t, Config{Program: program, Install: true})
	for name, want := range map[string]struct {
		qdisc string
		ours  bool
		why   string
	}{
		"one":    {"fq", true, ""},
		"many":   {"mq+fq", true, ""},
		"exit":   {"fq", true, ""},
		"theirs": {"fq", false, ""},
		"bare":   {"noqueue", false, "no default route"},
		"set":    {"pfifo_fast", false, "pfifo_fast 2: was set by somebody"},
	} {
		d, _ := p.State().find(name)
		if d.Qdisc != want.qdisc || d.Ours != want.ours || d.Paced != (want.why == "") || !strings.Contains(d.Why, want.why) {
			t.Errorf("%s: got %+v, want %+v", name, d, want)
		}
		if want.ours && d.Horizon != ourHorizon {
			t.Errorf("%s: horizon %v, want %v", name, d.Horizon, ourHorizon)
		}
	}
	if _, ok := p.State().find("unused"); ok {
		t.Error("a device that no route uses is told of")
	}
	if state := p.State(); !state.Ready || state.Horizon != 5*time.Second {
		t.Errorf("got ready %v, horizon %v; want the shortest, 5 s", state.Ready, state.Horizon)
	}

	// Switched off, and on again.
	p.SetInstall(false)
	eventually(t, "the qdiscs are restored", func() bool {
		s := states.last()
		return !s.paces("one") && !s.paces("many") && !s.paces("exit") && s.paces("theirs")
	})
	for _, name := range []string{"one", "many", "exit"} {
		compare(t, map[string][]string{name: before[name]})
	}
	p.SetInstall(true)
	eventually(t, "fq is back", func() bool {
		s := states.last()
		return s.paces("one") && s.paces("many") && s.paces("exit")
	})
	// A device that comes later.
	mustTun(t, "late", 1, "10.4.0.1/24")
	eventually(t, "it has fq", func() bool { return states.last().paces("late") })
	// Who takes it away gets their way.
	if err := netlink.QdiscDel(&netlink.Fq{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: mustLink(t, "one").Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: ourHandle,
	}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not fought for", func() bool {
		d, _ := states.last().find("one")
		return strings.Contains(d.Why, "tried again later")
	})
	// Who replaces it keeps what they set.
	mustQdisc(t, "many", plain)
	eventually(t, "it is theirs", func() bool {
		d, _ := states.last().find("many")
		return !d.Ours && strings.Contains(d.Why, "was set by somebody")
	})
	replaced := qdiscs(t, "many")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	before["many"] = replaced
	compare(t, before)
	for _, name := range names {
		mustClean(t, name)
	}
}

// compare says where qdiscs are not as they were.
func compare(t *testing.T, before map[string][]string) {
	t.Helper()
	for name, want := range before {
		if got := qdiscs(t, name); !slices.Equal(got, want) {
			t.Errorf("%s: qdiscs were\n%s\nare\n%s", name, strings.Join(want, "\n"), strings.Join(got, "\n"))
		}
	}
}

// The victim is this test binary in another process, in the namespace of the
// test: it installs, attaches, says so and waits to be killed.
const victimEnv = "EGRESSD_TEST_PACER"

func victimMain() {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: ProgramName, Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	switch how := os.Getenv(victimEnv); {
	case err != nil:
	case how == "filter":
		err = leaveFilter(program)
	default:
		_, err = Open(Config{Program: program, Install: true, noTCX: how == byClsact})
	}
	fmt.Println("opened:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// leaveFilter puts the program at v0 as if that had fq.
func leaveFilter(program *ebpf.Program) error {
	s, err := newSurveyor()
	if err != nil {
		return err
	}
	defer s.close()
	found, _, err := s.look(false)
	if err != nil {
		return err
	}
	k := hooks{h: s.h, program: program, noTCX: true}
	for _, d := range found.links {
		if d.name == "v0" {
			return k.keep(d).err
		}
	}
	return errors.New("no device v0")
}

// A filter outlives its process, on kernels without fq, too; Open and Clean
// remove it, and the clsact with it.
func TestFilterAfterKill(t *testing.T) {
	mustNetns(t)
	mustVeth(t, "v0", "192.0.2.1/24")
	before := map[string][]string{"v0": qdiscs(t, "v0")}
	left := func() bool { return strings.Contains(strings.Join(qdiscs(t, "v0"), "\n"), "clsact") }

	mustKill(t, "filter")
	if !left() {
		t.Fatal("nothing is left to be removed")
	}
	p, _ := mustOpen(t, Config{})
	compare(t, before)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	mustKill(t, "filter")
	if !left() {
		t.Fatal("nothing is left to be removed")
	}
	if err := Clean(mustNamespaceFile(t)); err != nil {
		t.Fatal(err)
	}
	compare(t, before)
}

// mustKill runs a victim and kills it.
func mustKill(t *testing.T, how string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+how)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "opened: <nil>\n" {
		t.Errorf("victim: got %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// After kill -9 a qdisc and a filter may stay. The next process takes the
// qdisc over or removes it, as it is told, and removes the filter.
func TestAfterKill(t *testing.T) {
	for _, how := range []string{byTCX, byClsact} {
		t.Run(how, func(t *testing.T) {
			if how == byTCX {
				needTCX(t)
			}
			mustNetns(t)
			needFQ(t)
			mustTun(t, "one", 1, "192.0.2.1/24")
			mustTun(t, "many", 2, "198.51.100.1/24")
			before := map[string][]string{"one": qdiscs(t, "one"), "many": qdiscs(t, "many")}
			look := func() (one, many Device) {
				state, err := Look(mustNamespaceFile(t))
				if err != nil {
					t.Fatal(err)
				}
				one, _ = state.find("one")
				many, _ = state.find("many")
				return one, many
			}

			mustKill(t, how)
			left := ""
			if how == byClsact {
				left = byClsact
			}
			eventually(t, "its links are gone", func() bool { one, many := look(); return one.Attached == left && many.Attached == left })
			if one, many := look(); !one.Ours || !many.Ours {
				t.Errorf("got %+v and %+v, want what it installed", one, many)
			}

			program, _ := mustProgram(t, ProgramName, 0)
			noTCX := how == byClsact
			p, _ := mustOpen(t, Config{Program: program, Install: true, noTCX: noTCX})
			for _, name := range []string{"one", "many"} {
				if d, _ := p.State().find(name); !d.Ours || !d.Paced || d.Attached != how || d.Foreign != nil {
					t.Errorf("%s: got %+v, want what was left taken over", name, d)
				}
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			compare(t, before)

			mustKill(t, how)
			p, _ = mustOpen(t, Config{Program: program, noTCX: noTCX}) // without Install
			if d, _ := p.State().find("one"); d.Ours || d.FQ {
				t.Errorf("got %+v, want what was left removed", d)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			compare(t, before)

			mustKill(t, how)
			if err := Clean(mustNamespaceFile(t)); err != nil {
				t.Fatal(err)
			}
			compare(t, before)
			mustClean(t, "one")
			mustClean(t, "many")
		})
	}
}
