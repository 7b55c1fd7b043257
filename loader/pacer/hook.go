// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ProgramName is the name of the program. Filters of clsact carry it, and Look
// knows programs by it.
const ProgramName = "egressd_pace"

// Handles of our filter. The second one says that the clsact qdisc is ours, too.
const (
	filterHandle       = 0xed01
	filterHandleClsact = 0xed02
)

// filterFirst is the preference of filters that are asked first.
const filterFirst = 1

// hooks keeps the program at the egress hook of devices. Its methods are called
// by a thread in the namespace: links and queries take that of the caller.
type hooks struct {
	h       *netlink.Handle
	program *ebpf.Program // nil: only look
	noTCX   bool
	links   map[int]link.Link // by tcx, by index of the device
}

// keep sees to it that the program is at the device, before those of others, and
// says what is there.
func (k *hooks) keep(d *device) attachment {
	foreign, err := k.foreign(d)
	if err != nil {
		return attachment{err: err}
	}
	if k.program == nil {
		return attachment{foreign: foreign}
	}
	if !k.noTCX {
		switch err := k.keepTCX(d); {
		case err == nil:
			return attachment{how: byTCX, foreign: foreign}
		case !errors.Is(err, link.ErrNotSupported):
			return attachment{err: err, foreign: foreign}
		}
		k.noTCX = true
	}
	if err := k.keepFilter(d); err != nil {
		return attachment{err: err, foreign: foreign}
	}
	return attachment{how: byClsact, foreign: foreign}
}

func (k *hooks) keepTCX(d *device) error {
	if l := k.links[d.index]; l != nil {
		// A link whose device was unregistered says 0.
		if info, err := l.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == d.index {
			return nil
		}
		_ = l.Close()
		delete(k.links, d.index)
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: d.index, Program: k.program, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
	})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", d.name, err)
	}
	k.links[d.index] = l
	return nil
}

// keepFilter is keepTCX for kernels before 6.6.
func (k *hooks) keepFilter(d *device) error {
	filters, err := k.filters(d)
	if err != nil {
		return err
	}
	id, ok := programID(k.program)
	if !ok {
		return errors.New("the program has no id")
	}
	handle := uint32(filterHandle)
	for _, f := range filters {
		if ours, is := ourFilter(f); is {
			if ours.Id == int(id) {
				return nil
			}
			return fmt.Errorf("the filter of another egressd is at %s", d.name)
		}
	}
	if !d.clsact {
		if d.ingress {
			return fmt.Errorf("%s has an ingress qdisc where clsact would be: tc qdisc replace dev %s clsact", d.name, d.name)
		}
		switch err := k.h.QdiscAdd(newClsact(d)); {
		case err == nil:
			handle = filterHandleClsact
		case !errors.Is(err, unix.EEXIST): // somebody was faster
			return fmt.Errorf("add clsact to %s: %w", d.name, err)
		}
	}
	err = k.h.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: d.index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: handle,
			Priority: firstPreference(filters), Protocol: unix.ETH_P_ALL,
		},
		Fd: k.program.FD(), Name: ProgramName, DirectAction: true,
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("add filter to %s: %w", d.name, err)
	if handle == filterHandleClsact {
		err = errors.Join(err, k.dropClsact(d))
	}
	return err
}

func newClsact(d *device) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: d.index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// firstPreference is the lowest at which our filter can be: filters that share
// one are of one kind and one protocol. Within it the newest is asked first.
func firstPreference(filters []netlink.Filter) uint16 {
	taken := make(map[uint16]bool)
	for _, f := range filters {
		if a := f.Attrs(); f.Type() != "bpf" || a.Protocol != unix.ETH_P_ALL {
			taken[a.Priority] = true
		}
	}
	preference := uint16(filterFirst)
	for taken[preference] {
		preference++
	}
	return preference
}

// filters lists what is at the egress hook by clsact, in the order in which it
// is asked.
func (k *hooks) filters(d *device) ([]netlink.Filter, error) {
	if !d.clsact {
		return nil, nil
	}
	filters, err := k.h.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: d.index, Name: d.name}}, netlink.HANDLE_MIN_EGRESS)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list filters of %s: %w", d.name, err)
	}
	return filters, nil
}

func ourFilter(f netlink.Filter) (*netlink.BpfFilter, bool) {
	b, is := f.(*netlink.BpfFilter)
	if !is || b.Name != ProgramName {
		return nil, false
	}
	handle := b.Attrs().Handle
	return b, handle == filterHandle || handle == filterHandleClsact
}

// foreign names what others have at the egress hook.
func (k *hooks) foreign(d *device) ([]string, error) {
	var names []string
	for _, id := range tcxPrograms(d.index) {
		if own, ok := programID(k.program); ok && own == id {
			continue
		}
		if name := programName(id); name != ProgramName {
			names = append(names, fmt.Sprintf("%s (id %d)", name, id))
		}
	}
	filters, err := k.filters(d)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if _, ours := ourFilter(f); ours {
			continue
		}
		name := f.Type()
		if b, is := f.(*netlink.BpfFilter); is {
			name = fmt.Sprintf("%s (id %d)", b.Name, b.Id)
		}
		names = append(names, "filter "+name)
	}
	return names, nil
}

// present says how a program of that name is at the device, whoever put it
// there.
func (k *hooks) present(d *device) attachment {
	foreign, err := k.foreign(d)
	if err != nil {
		return attachment{err: err}
	}
	a := attachment{foreign: foreign}
	if slices.ContainsFunc(tcxPrograms(d.index), func(id ebpf.ProgramID) bool { return programName(id) == ProgramName }) {
		a.how = byTCX
		return a
	}
	filters, err := k.filters(d)
	if err != nil {
		return attachment{err: err}
	}
	if slices.ContainsFunc(filters, func(f netlink.Filter) bool { _, ours := ourFilter(f); return ours }) {
		a.how = byClsact
	}
	return a
}

// drop takes the program off a device.
func (k *hooks) drop(d *device) error {
	var errs []error
	if l := k.links[d.index]; l != nil {
		delete(k.links, d.index)
		if err := l.Close(); err != nil {
			errs = append(errs, fmt.Errorf("detach from %s: %w", d.name, err))
		}
	}
	return errors.Join(append(errs, k.dropFilter(d))...)
}

// dropFilter removes our filter from a device, that of an earlier process
// included, and the clsact that was added for it.
func (k *hooks) dropFilter(d *device) error {
	filters, err := k.filters(d)
	if err != nil {
		return err
	}
	for _, f := range filters {
		ours, is := ourFilter(f)
		if !is {
			continue
		}
		if err := k.h.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove filter of %s: %w", d.name, err)
		}
		if ours.Attrs().Handle == filterHandleClsact {
			if err := k.dropClsact(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropClsact removes the clsact qdisc, unless others came to use it.
func (k *hooks) dropClsact(d *device) error {
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: d.index, Name: d.name}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
		filters, err := k.h.FilterList(l, parent)
		if err != nil {
			return fmt.Errorf("list filters of %s: %w", d.name, err)
		}
		if len(filters) > 0 {
			return nil
		}
	}
	err := k.h.QdiscDel(newClsact(d))
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove clsact of %s: %w", d.name, err)
	}
	return nil
}

// forget closes the links of devices that are gone.
func (k *hooks) forget(s *survey) {
	for index, l := range k.links {
		if s.links[index] == nil {
			_ = l.Close()
			delete(k.links, index)
		}
	}
}

// tcxPrograms are the programs at the egress hook by tcx; none where the kernel
// has no tcx, or does not tell.
func tcxPrograms(index int) []ebpf.ProgramID {
	result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return nil
	}
	ids := make([]ebpf.ProgramID, len(result.Programs))
	for i, p := range result.Programs {
		ids[i] = p.ID
	}
	return ids
}

func programID(p *ebpf.Program) (ebpf.ProgramID, bool) {
	if p == nil {
		return 0, false
	}
	info, err := p.Info()
	if err != nil {
		return 0, false
	}
	return info.ID()
}

// programName is the name of a program, or what to call it without one.
func programName(id ebpf.ProgramID) string {
	const nameless = "a program without a name"
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nameless
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		return info.Name
	}
	return nameless
}
