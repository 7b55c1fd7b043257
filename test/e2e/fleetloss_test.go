// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// lose loses a part of the packets to and from a TCP port, of IPv4, at a device
// of a namespace until the returned function is called. It does so by a filter of
// tc that is a program, as not every kernel has netem.
func lose(t testing.TB, netns, device string, port int, part float64) (stop func()) {
	t.Helper()
	// Classic BPF: code, jump if true, jump if false, value.
	const (
		byteAt, half, random  = 0x30, 0x28, 0x20
		equal, greater, leave = 0x15, 0x25, 0x06
		randomly              = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
		keep, shot            = 0, 2            // TC_ACT_…
	)
	const ethernet, ip = 14, 20
	var code []string
	for _, i := range [][4]uint64{
		{half, 0, 0, 12}, // EtherType
		{equal, 0, 9, 0x0800},
		{byteAt, 0, 0, ethernet + 9}, // protocol
		{equal, 0, 7, 6},
		{half, 0, 0, ethernet + ip}, // from
		{equal, 2, 0, uint64(port)},
		{half, 0, 0, ethernet + ip + 2}, // to
		{equal, 0, 3, uint64(port)},
		{random, 0, 0, randomly},
		{greater, 1, 0, uint64(part * math.MaxUint32)},
		{leave, 0, 0, shot},
		{leave, 0, 0, keep},
	} {
		code = append(code, fmt.Sprintf("%d %d %d %d", i[0], i[1], i[2], i[3]))
	}
	program := fmt.Sprintf("%d,%s", len(code), strings.Join(code, ","))
	mustRun(t, "tc", "-n", netns, "qdisc", "add", "dev", device, "clsact")
	for _, way := range []string{"ingress", "egress"} {
		mustRun(t, "tc", "-n", netns, "filter", "add", "dev", device, way, "bpf", "bytecode", program, "direct-action")
	}
	return func() { mustRun(t, "tc", "-n", netns, "qdisc", "del", "dev", device, "clsact") }
}
