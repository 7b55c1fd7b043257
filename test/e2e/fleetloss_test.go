// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// lose loses a part of the packets to and from a TCP port, of IPv4, at a device
// of a namespace until the returned function is called. It is a program of ours,
// as not every kernel has netem.
func lose(t testing.TB, netns, device string, port int32, part float64) (stop func()) {
	t.Helper()
	const (
		protocol    = 14 + 9 // Ethernet's head, and IP's without options
		source      = 14 + 20
		destination = source + 2
		tcp         = 6
		ok, shot    = 0, 2 // TC_ACT_…
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lose", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), // where loads from packets look for it
			asm.LoadAbs(12, asm.Half),   // EtherType
			asm.JNE.Imm(asm.R0, 0x0800, "keep"),
			asm.LoadAbs(protocol, asm.Byte),
			asm.JNE.Imm(asm.R0, tcp, "keep"),
			asm.LoadAbs(source, asm.Half),
			asm.JEq.Imm(asm.R0, port, "draw"),
			asm.LoadAbs(destination, asm.Half),
			asm.JNE.Imm(asm.R0, port, "keep"),
			asm.FnGetPrandomU32.Call().WithSymbol("draw"),
			asm.JGT.Imm32(asm.R0, int32(uint32(part*math.MaxUint32)), "keep"),
			asm.Mov.Imm(asm.R0, shot),
			asm.Return(),
			asm.Mov.Imm(asm.R0, ok).WithSymbol("keep"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatalf("load a program that loses packets: %v", err)
	}
	defer prog.Close()
	pin := filepath.Join(here.pins, netns)
	if err := prog.Pin(pin); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := prog.Unpin(); err != nil {
			t.Error(err)
		}
	}()
	// The program is in the host's bpffs, which ip netns exec would hide.
	tc := []string{"--net=/run/netns/" + netns, "--", "tc"}
	mustRun(t, "nsenter", append(tc, "qdisc", "add", "dev", device, "clsact")...)
	for _, way := range []string{"ingress", "egress"} {
		mustRun(t, "nsenter", append(tc, "filter", "add", "dev", device, way, "bpf", "direct-action", "object-pinned", pin)...)
	}
	return func() { mustRun(t, "nsenter", append(tc, "qdisc", "del", "dev", device, "clsact")...) }
}
