// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stacks lay a device with no queue above v0, whose address then is 192.0.2.1.
var stacks = map[string]func(v0 netlink.Link) netlink.Link{
	"vlan": func(v0 netlink.Link) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = "top", v0.Attrs().Index
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: 5}
	},
	"bond": func(netlink.Link) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "top"
		b := netlink.NewLinkBond(attrs)
		b.Mode, b.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 10
		return b
	},
}

// What leaves by a device that lies above one with fq waits there.
func TestStack(t *testing.T) {
	for kind, above := range stacks {
		t.Run(kind, func(t *testing.T) {
			mustNetns(t)
			needFQ(t)
			mustVeth(t, "v0", "")
			v0 := mustLink(t, "v0")
			top := above(v0)
			if err := netlink.LinkAdd(top); errors.Is(err, unix.EOPNOTSUPP) {
				t.Skipf("this kernel has no devices of kind %s", kind)
			} else if err != nil {
				t.Fatal(err)
			}
			if kind == "bond" {
				if err := netlink.LinkSetDown(v0); err != nil {
					t.Fatal(err)
				}
				if err := netlink.LinkSetMaster(v0, top); err != nil {
					t.Fatal(err)
				}
			}
			mustUp(t, "top")
			mustUp(t, "v0")
			mustAddr(t, "top", "192.0.2.1/24")
			neighbour := &netlink.Neigh{
				LinkIndex: mustLink(t, "top").Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: []byte{192, 0, 2, 9}, HardwareAddr: mustLink(t, "v0-peer").Attrs().HardwareAddr,
			}
			if err := netlink.NeighSet(neighbour); err != nil {
				t.Fatal(err)
			}
			mustQdisc(t, "v0", fqFor(time.Minute))
			const ahead = 300 * time.Millisecond
			program, _ := mustProgram(t, ProgramName, ahead)
			p, states := mustOpen(t, Config{Program: program})
			eventually(t, "what leaves by it is paced", func() bool {
				s := states.last()
				d, _ := s.find("top")
				return s.Ready && s.Horizon == time.Minute && d.Paced && !d.FQ && slices.Equal(d.Lower, []string{"v0"}) && d.Attached == ""
			})
			eventually(t, "it leads somewhere", func() bool { return mustLink(t, "top").Attrs().OperState == netlink.OperUp })
			arrived := mustListen(t, "v0-peer")
			began := time.Now()
			mustSend(t, "192.0.2.9:9")
			if err := <-arrived; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < ahead {
				t.Errorf("the packet took %v, want %v at least", took, ahead)
			}
			mustQdisc(t, "v0", plain)
			eventually(t, "it is paced no longer", func() bool { return !states.last().Ready })
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
