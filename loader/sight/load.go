// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// Support is what of the kernel the programs use.
type Support struct {
	// Multi means that all functions of a file are probed at once
	// (uprobe_multi, since 6.6), and not one by one through perf events.
	Multi bool
	// Sockets names the tracepoints that tell which socket a call uses, or
	// is "" where the kernel has none: then a connection is known by its
	// client random and by SSL_set_fd, else not at all.
	Sockets string
	// Closing means that the end of a socket is noticed. Without it the
	// sessions of Go and GnuTLS are kept until their process ends.
	Closing bool
}

// Support tells what Open found.
func (s *Sight) Support() Support { return s.support }

// socketHook is a pair of programs that see what sockets move.
type socketHook struct {
	name     string
	programs []string
}

// socketHooks are the pairs of programs that see sockets, the best first. The
// second one has no lengths, so it takes more for granted.
var socketHooks = []socketHook{
	{"sock_send_length, sock_recv_length", []string{sightProgSockSendLength, sightProgSockRecvLength}},
	{"tcp_sendmsg_locked, tcp_rcv_space_adjust", []string{sightProgTcpSendmsgLocked, sightProgTcpRcvSpaceAdjust}},
}

// load loads the maps and the probes, then of the hooks what this kernel has.
func (s *Sight) load(ringBytes uint32, m machine) error {
	spec, err := loadSight()
	if err != nil {
		return fmt.Errorf("read embedded programs: %w", err)
	}
	spec.Maps[sightMapEvents].MaxEntries = ringBytes
	s.support.Multi = m.multi
	for _, p := range spec.Programs {
		if p.Type == ebpf.Kprobe && s.support.Multi {
			p.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	if err := spec.LoadAndAssign(&s.objs, nil); err != nil {
		return loadError(err)
	}
	for _, h := range m.sockets {
		if err := s.hook(spec, h.programs...); err != nil {
			s.log.Debug("tracepoints of sockets", "hooks", h.name, "err", err)
			continue
		}
		s.support.Sockets = h.name
		break
	}
	if s.support.Sockets == "" {
		s.log.Warn("no tracepoint tells the sockets of TLS connections: only the client random and SSL_set_fd do")
	}
	if !m.closing {
		return nil
	}
	if err := s.hook(spec, sightProgTcpDestroySock); err != nil {
		s.log.Debug("tracepoint of closing sockets", "err", err)
		return nil
	}
	s.support.Closing = true
	return nil
}

// hook loads programs that not every kernel takes and attaches them, all or
// none.
func (s *Sight) hook(spec *ebpf.CollectionSpec, names ...string) (err error) {
	part := spec.Copy()
	replacements := map[string]*ebpf.Map{
		sightMapConns:          s.objs.Conns,
		sightMapControl:        s.objs.Control,
		sightMapEvents:         s.objs.Events,
		sightMapGoroutineCalls: s.objs.GoroutineCalls,
		sightMapOwners:         s.objs.Owners,
		sightMapRecords:        s.objs.Records,
		sightMapTallies:        s.objs.Tallies,
		sightMapThreadCalls:    s.objs.ThreadCalls,
		sightMapWatched:        s.objs.Watched,
	}
	for name := range part.Maps {
		if replacements[name] == nil {
			delete(part.Maps, name)
		}
	}
	for name := range part.Variables {
		delete(part.Variables, name)
	}
	part.Programs = make(map[string]*ebpf.ProgramSpec)
	for _, name := range names {
		part.Programs[name] = spec.Programs[name].Copy()
	}
	loaded, err := ebpf.NewCollectionWithOptions(part, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return loadError(err)
	}
	defer loaded.Close()
	var hooks []io.Closer
	for _, name := range names {
		l, err := link.AttachTracing(link.TracingOptions{Program: loaded.Programs[name]})
		if err != nil {
			for _, h := range hooks {
				h.Close()
			}
			return fmt.Errorf("attach %s: %w", name, err)
		}
		hooks = append(hooks, l)
	}
	s.hooks = append(s.hooks, hooks...)
	return nil
}

func loadError(err error) error {
	if verifier, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		return fmt.Errorf("load probes: %w\n%+v", err, verifier)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the kernel forbids to load probes: %w", loader.ErrPrivileges, err)
	}
	return fmt.Errorf("load probes: %w", err)
}
