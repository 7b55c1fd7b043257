// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hook is a place at a cgroup and the program that goes there.
type hook struct {
	attach  ebpf.AttachType
	program *ebpf.Program
}

// hooks in the order of attaching: what looks after redirected sockets first,
// what redirects last. Detaching goes the other way.
func (k *Kernel) hooks() []hook {
	return []hook{
		{ebpf.AttachCgroupInetSockRelease, k.objs.SockRelease},
		{ebpf.AttachCgroupInet4GetPeername, k.objs.Getpeername4},
		{ebpf.AttachCgroupInet6GetPeername, k.objs.Getpeername6},
		{ebpf.AttachCGroupUDP4Sendmsg, k.objs.Sendmsg4},
		{ebpf.AttachCGroupUDP6Sendmsg, k.objs.Sendmsg6},
		{ebpf.AttachCGroupInet4Connect, k.objs.Connect4},
		{ebpf.AttachCGroupInet6Connect, k.objs.Connect6},
	}
}

// Attach puts the programs at the configured cgroups. From here on connections
// are counted, and redirected as far as Apply, Enrol and Beat allow. Either
// all cgroups are attached or none. The error wraps ErrBusy if another egressd
// is at one of them.
func (k *Kernel) Attach() (err error) {
	k.attachMu.Lock()
	defer k.attachMu.Unlock()
	if k.links != nil {
		return errors.New("attach programs: already attached")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.detach())
		}
	}()
	if err := k.forgetRecent(); err != nil {
		return fmt.Errorf("attach programs: %w", err)
	}
	for _, name := range k.names {
		dir, err := openCgroup(cgroupDir(k.root, name))
		if err != nil {
			return err
		}
		k.cgroups = append(k.cgroups, dir)
		// The lock ends with the process, as the links do.
		if err := lockDir(dir); err != nil {
			return fmt.Errorf("cgroup %s: %w", dir.Name(), err)
		}
		k.logForeign(dir)
		k.removeCanaries(dir.Name())
	}
	for _, h := range k.hooks() {
		for _, dir := range k.cgroups {
			// A raw link, because AttachCgroup falls back to an
			// attachment that outlives the process.
			l, err := link.AttachRawLink(link.RawLinkOptions{
				Target:  int(dir.Fd()),
				Program: h.program,
				Attach:  h.attach,
			})
			if errors.Is(err, unix.EPERM) {
				return fmt.Errorf("%w: attach %s to cgroup %s: %w", ErrPrivileges, h.attach, dir.Name(), err)
			}
			if err != nil {
				return fmt.Errorf("attach %s to cgroup %s: %w", h.attach, dir.Name(), err)
			}
			k.links = append(k.links, l)
		}
	}
	return nil
}

// forgetRecent frees all slots of connections of which nothing is counted yet.
// Those that were closed while the programs were off left their slots to whoever
// has their memory now.
func (k *Kernel) forgetRecent() error {
	mem, err := mapMemory(k.objs.Recent)
	if err != nil {
		return err
	}
	clear(mem)
	return unix.Munmap(mem)
}

// Detach takes the programs off: from its return on every connect() is native.
// Connections that were redirected before stay with the proxy; of others that
// were not accounted for by then, nothing more is counted. Detaching what
// is not attached does nothing.
func (k *Kernel) Detach() error {
	k.attachMu.Lock()
	defer k.attachMu.Unlock()
	return k.detach()
}

func (k *Kernel) detach() error {
	var errs []error
	for i := len(k.links) - 1; i >= 0; i-- {
		if err := k.links[i].Close(); err != nil {
			errs = append(errs, fmt.Errorf("detach: %w", err))
		}
	}
	k.links = nil
	for _, dir := range k.cgroups {
		errs = append(errs, dir.Close())
	}
	k.cgroups = nil
	return errors.Join(errs...)
}

// logForeign tells of programs of others at the cgroup or above it. They run
// before or after ours and may see, or set, another address.
func (k *Kernel) logForeign(dir *os.File) {
	present, err := programsAt(dir, dir.Name())
	if err != nil {
		k.log.Warn("query foreign programs", "cgroup", dir.Name(), "err", err)
	}
	for _, p := range present {
		k.log.Warn("foreign program at cgroup", "cgroup", dir.Name(), "hook", p.Hook, "program", p.Name, "id", p.ID)
	}
}
