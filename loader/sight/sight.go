// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// DefaultRingBytes is the size of the ring between the probes and Run.
const DefaultRingBytes = 4 << 20

// Config says whose connections are seen.
type Config struct {
	// Root is where the cgroup v2 hierarchy is; "" asks loader.CgroupRoot.
	Root string
	// Cgroups are paths from Root. Their processes, and those below, are
	// seen. Empty means the root.
	Cgroups []string
	// Exclude are paths from Root whose processes, and those below, are not
	// seen, whatever Cgroups says. Those that do not exist are passed over.
	Exclude []string
	// RingBytes is a power of two and a multiple of the page size; 0 means
	// DefaultRingBytes.
	RingBytes uint32
	// Logger is told of what is odd but no error. Nil is silence.
	Logger *slog.Logger
}

// Sight is the loaded programs. Its methods are safe for concurrent use,
// except that none may run during or after Close, and Run only once at a time.
type Sight struct {
	log     *slog.Logger
	root    string
	objs    objects
	support Support
	hooks   []io.Closer
	reader  *ringbuf.Reader
	memory  []byte // of the map control
	control *sightControl

	mu       sync.Mutex
	attached map[*attachment]struct{}
	scope    map[uint64]uint8 // what is in the map scope
}

// objects are the maps, and the programs that every kernel takes.
type objects struct {
	sightMaps
	Enter    *ebpf.Program `ebpf:"enter"`
	Leave    *ebpf.Program `ebpf:"leave"`
	GoEnter  *ebpf.Program `ebpf:"go_enter"`
	GoLeave  *ebpf.Program `ebpf:"go_leave"`
	BioWrite *ebpf.Program `ebpf:"bio_write"`
	SetFd    *ebpf.Program `ebpf:"set_fd"`
	SslFree  *ebpf.Program `ebpf:"ssl_free"`
	Whoami   *ebpf.Program `ebpf:"whoami"`
}

func (o *objects) close() error {
	errs := []error{o.sightMaps.Close()}
	for _, p := range []*ebpf.Program{o.Enter, o.Leave, o.GoEnter, o.GoLeave, o.BioWrite, o.SetFd, o.SslFree, o.Whoami} {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Open loads the programs and finds out what the kernel lets them see. No
// process is looked at before Attach. The caller must Close the result.
func Open(cfg Config) (*Sight, error) {
	return open(cfg, machine{
		multi:   features.HaveBPFLinkUprobeMulti() == nil,
		sockets: socketHooks,
		closing: true,
	})
}

// machine is what of the kernel to try.
type machine struct {
	multi   bool
	sockets []socketHook
	closing bool
}

func open(cfg Config, m machine) (_ *Sight, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.RingBytes == 0 {
		cfg.RingBytes = DefaultRingBytes
	}
	if cfg.Root == "" {
		if cfg.Root, err = loader.CgroupRoot(); err != nil {
			return nil, err
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove memory lock limit: %w", err)
	}
	s := &Sight{
		log:      cfg.Logger,
		root:     cfg.Root,
		attached: make(map[*attachment]struct{}),
		scope:    make(map[uint64]uint8),
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.load(cfg.RingBytes, m); err != nil {
		return nil, err
	}
	if err := s.mapControl(); err != nil {
		return nil, err
	}
	if _, err := s.objs.Whoami.Run(&ebpf.RunOptions{}); err != nil {
		return nil, fmt.Errorf("learn own process id: %w", err)
	}
	if s.reader, err = ringbuf.NewReader(s.objs.Events); err != nil {
		return nil, fmt.Errorf("open ring of events: %w", err)
	}
	if err := s.SetScope(cfg.Cgroups, cfg.Exclude); err != nil {
		return nil, err
	}
	return s, nil
}

// mapControl maps the words that the daemon shares with the programs.
func (s *Sight) mapControl() (err error) {
	s.memory, err = unix.Mmap(s.objs.Control.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memory of %s: %w", s.objs.Control, err)
	}
	s.control = (*sightControl)(unsafe.Pointer(unsafe.SliceData(s.memory)))
	return nil
}

// Close takes all probes off and gives everything back. Calls that are under
// way in other processes go on undisturbed.
func (s *Sight) Close() error {
	s.mu.Lock()
	attached := make([]*attachment, 0, len(s.attached))
	for a := range s.attached {
		attached = append(attached, a)
	}
	s.mu.Unlock()
	var errs []error
	for _, a := range attached {
		errs = append(errs, a.Close())
	}
	for _, h := range s.hooks {
		errs = append(errs, h.Close())
	}
	s.hooks = nil
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.memory != nil {
		errs = append(errs, unix.Munmap(s.memory))
		s.memory, s.control = nil, nil
	}
	errs = append(errs, s.objs.close())
	s.objs = objects{}
	return errors.Join(errs...)
}
