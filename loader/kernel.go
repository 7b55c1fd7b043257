// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// DefaultLanes is the number of cells of a ledger: 8 MiB of memory.
const DefaultLanes = 65536

// Config says where the programs work. The zero Config is every process of
// the host with a private ledger.
type Config struct {
	// Root is where the cgroup v2 hierarchy is; "" asks CgroupRoot.
	Root string
	// Cgroups are paths from Root whose processes, and those below, are
	// shaped. Empty means the root. A path below another one is dropped.
	Cgroups []string
	// Exclude are paths whose processes, and those below, stay untouched.
	// They need not exist yet.
	Exclude []string
	// OwnCgroup is the path of a cgroup that holds nothing but the daemon, if
	// there is one. The daemon is told by its process id in any case; its
	// cgroup covers helper processes as well.
	OwnCgroup string
	// PinDir is a directory on a BPF file system in which the ledger and
	// the lane index survive the daemon. It is made if missing. "" keeps
	// both private to the process.
	PinDir string
	// Lanes is the number of cells; 0 means DefaultLanes.
	Lanes uint32
	// Logger is told of what is odd but no error. Nil is silence.
	Logger *slog.Logger
}

// Kernel is the loaded programs and their maps. Its methods are safe for
// concurrent use, except that none may run during or after Close.
type Kernel struct {
	log   *slog.Logger
	root  string
	names []string // cgroups to attach to, outermost only
	objs  egressObjects

	pinLock    *os.File // holds the lock on PinDir; nil if private
	ledgerMem  []byte
	controlMem []byte
	backlogMem []byte
	areaMem    []byte
	cells      []ledger.Cell
	control    *egressControl
	backlogs   []egressBacklog
	areas      []uint64 // written under stateMu

	takers sync.Pool // *taker

	attachMu sync.Mutex
	cgroups  []*os.File // open and locked while attached
	links    []link.Link

	stateMu   sync.Mutex
	enrolled  map[uint64]egressEnrolment
	named     namedState
	plane     planeState
	exits     exitState
	excluded  map[string]uint64 // path → id, 0 if it does not exist
	exitNames atomic.Pointer[[]string]

	canaryMu sync.Mutex
	flushMu  sync.Mutex
	flush    *link.Iter
}

// Open checks the machine, loads the programs and maps the shared memory. It
// attaches nothing: no connection is touched or counted before Attach. The
// caller must Close the result.
//
// Errors wrap ErrPrivileges, ErrKernelTooOld, ErrNoBTF, ErrNoCgroup2,
// ErrNoBPFFS, ErrBusy or ErrLayout where one of them is the reason.
func Open(cfg Config) (_ *Kernel, err error) {
	if err := preflight(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Lanes == 0 {
		cfg.Lanes = DefaultLanes
	}
	if len(cfg.Cgroups) == 0 {
		cfg.Cgroups = []string{"/"}
	}
	if cfg.Root == "" {
		if cfg.Root, err = CgroupRoot(); err != nil {
			return nil, err
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove memory lock limit: %w", err)
	}

	k := &Kernel{
		log:      cfg.Logger,
		root:     cfg.Root,
		names:    outermost(cfg.Cgroups),
		enrolled: make(map[uint64]egressEnrolment),
		named:    newNamedState(),
		plane:    newPlaneState(),
		exits:    newExitState(),
		excluded: make(map[string]uint64),
	}
	k.takers.New = func() any { return new(taker) }
	k.exitNames.Store(&[]string{policy.DirectExit})
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	if err := k.load(cfg); err != nil {
		return nil, err
	}
	if err := k.mapAll(); err != nil {
		return nil, err
	}
	if cfg.OwnCgroup != "" {
		id, err := cgroupID(cgroupDir(k.root, cfg.OwnCgroup))
		if err != nil {
			return nil, fmt.Errorf("find own cgroup: %w", err)
		}
		atomic.StoreUint64(&k.control.OwnCgroup, id)
	}
	if _, err := k.objs.Whoami.Run(&ebpf.RunOptions{}); err != nil {
		return nil, fmt.Errorf("learn own process id: %w", err)
	}
	// Where counts go once the map is full. It must exist before it is.
	if err := k.objs.Dests.Update(egressDestKey{}, egressDest{}, ebpf.UpdateAny); err != nil {
		return nil, fmt.Errorf("prepare destination counters: %w", err)
	}
	if err := k.objs.UdpDests.Update(egressDestKey{}, egressUdpDest{}, ebpf.UpdateAny); err != nil {
		return nil, fmt.Errorf("prepare counters of UDP: %w", err)
	}
	if err := k.Exclude(cfg.Exclude); err != nil {
		return nil, err
	}
	if k.flush, err = link.AttachIter(link.IterOptions{Program: k.objs.AccountOpen}); err != nil {
		return nil, fmt.Errorf("attach socket iterator: %w", err)
	}
	return k, nil
}

// load loads the objects, taking the ledger from cfg.PinDir if one is there.
func (k *Kernel) load(cfg Config) error {
	spec, err := loadEgress()
	if err != nil {
		return fmt.Errorf("read embedded programs: %w", err)
	}
	if n := spec.Maps[egressMapGates].MaxEntries; int(n) != len(gateNames) {
		return fmt.Errorf("programs have %d gates, the loader knows %d", n, len(gateNames))
	}
	if n := spec.Maps[egressMapAreas].MaxEntries; n != 2*areaWords {
		return fmt.Errorf("programs have %d words of areas, the loader knows %d", n, 2*areaWords)
	}
	if err := checkCell(spec.Types); err != nil {
		return err
	}
	// What other processors promise is less: their stores may change places.
	if err := spec.Variables[egressVarStoresInOrder].Set(runtime.GOARCH == "amd64"); err != nil {
		return fmt.Errorf("tell the programs of the processor: %w", err)
	}
	spec.Maps[egressMapLedger].MaxEntries = cfg.Lanes
	spec.Maps[egressMapLanes].MaxEntries = cfg.Lanes
	spec.Maps[egressMapPlaneLanes].MaxEntries = cfg.Lanes

	var opts ebpf.CollectionOptions
	if cfg.PinDir != "" {
		dir, lock, err := openPinDir(cfg.PinDir)
		if err != nil {
			return err
		}
		k.pinLock = lock
		opts.Maps.PinPath = dir
		spec.Maps[egressMapLedger].Pinning = ebpf.PinByName
		spec.Maps[egressMapLanes].Pinning = ebpf.PinByName
	}
	err = spec.LoadAndAssign(&k.objs, &opts)
	var verifier *ebpf.VerifierError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("%w: remove %s to start with an empty ledger: %w", ErrLayout, opts.Maps.PinPath, err)
	case errors.As(err, &verifier):
		return fmt.Errorf("load programs: %w\n%+v", err, verifier)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: the kernel forbids to load programs: %w", ErrPrivileges, err)
	}
	return fmt.Errorf("load programs: %w", err)
}

// mapAll maps what Go and the programs share.
func (k *Kernel) mapAll() (err error) {
	if k.ledgerMem, err = mapMemory(k.objs.Ledger); err != nil {
		return err
	}
	if k.controlMem, err = mapMemory(k.objs.Control); err != nil {
		return err
	}
	if k.backlogMem, err = mapMemory(k.objs.Backlogs); err != nil {
		return err
	}
	if k.areaMem, err = mapMemory(k.objs.Areas); err != nil {
		return err
	}
	k.cells, err = ledger.Cells(k.ledgerMem[:int(k.objs.Ledger.MaxEntries())*ledger.CellSize])
	if err != nil {
		return err
	}
	k.control = &records[egressControl](k.controlMem, 1)[0]
	k.backlogs = records[egressBacklog](k.backlogMem, k.objs.Backlogs.MaxEntries())
	k.areas = records[uint64](k.areaMem, k.objs.Areas.MaxEntries())
	return nil
}

// Close detaches the programs if they are attached, then gives everything
// back. What was pinned stays, with all cooldowns and buckets. Nothing that
// came from the Kernel, Cells above all, may be used any more.
func (k *Kernel) Close() error {
	errs := []error{k.Detach()}
	if k.flush != nil {
		errs = append(errs, k.flush.Close())
		k.flush = nil
	}
	k.cells, k.control, k.backlogs, k.areas = nil, nil, nil, nil
	for _, mem := range []*[]byte{&k.ledgerMem, &k.controlMem, &k.backlogMem, &k.areaMem} {
		if *mem != nil {
			errs = append(errs, unix.Munmap(*mem))
			*mem = nil
		}
	}
	if k.objs.Ledger != nil {
		errs = append(errs, k.objs.Close())
		k.objs = egressObjects{}
	}
	if k.pinLock != nil {
		errs = append(errs, k.pinLock.Close())
		k.pinLock = nil
	}
	return errors.Join(errs...)
}

// Cells is the ledger: memory that the programs use at the same time. Valid
// until Close.
func (k *Kernel) Cells() []ledger.Cell { return k.cells }

// Beat says that the accept loop is alive at now. The programs redirect
// nothing once the last beat is older than one second. It must be called by
// the loop itself, not by a goroutine that would survive its standstill. It
// makes no system call and never allocates.
func (k *Kernel) Beat(now ledger.Time) {
	atomic.StoreUint64(&k.control.Beat, uint64(now))
}
