// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// CheckPrivileges says, wrapping ErrPrivileges, which capabilities of the
// calling thread are missing to load and attach programs.
func CheckPrivileges() error { return checkCapabilities() }

// CheckKernel says, wrapping ErrKernelTooOld, whether a kernel of that release
// is too old.
func CheckKernel(release string) error { return checkKernel(release) }

// CheckBTF says, wrapping ErrNoBTF, whether the running kernel shows its types.
func CheckBTF() error { return checkBTF() }

// CheckPinDir says, wrapping ErrNoBPFFS, whether a ledger could not be pinned
// below dir. It makes nothing.
func CheckPinDir(dir string) error { return checkBPFFS(dir) }

// IsCgroupRoot reports whether dir is the root of the cgroup v2 hierarchy, not
// a part of it that a mount or a namespace shows.
func IsCgroupRoot(dir string) bool {
	id, err := cgroupID(dir)
	return err == nil && id == rootCgroupInode
}

// Verified is what the kernel said of one program.
type Verified struct {
	Program string
	Kind    string // of the program, with the hook where it has one
	Err     error  // nil: it may run
}

// Verify has the kernel verify each program by itself. Nothing is attached,
// and all of it is gone afterwards. The error says that not even the maps
// could be made.
func Verify() ([]Verified, error) {
	if err := preflight(); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove memory lock limit: %w", err)
	}
	spec, err := loadEgress()
	if err != nil {
		return nil, fmt.Errorf("read embedded programs: %w", err)
	}
	spec.Maps[egressMapLedger].MaxEntries, spec.Maps[egressMapLanes].MaxEntries = 2, 2
	programs := spec.Programs
	spec.Programs = nil
	shared, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("make maps: %w", err)
	}
	defer shared.Close()
	var all []Verified
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		p := programs[name]
		v := Verified{Program: name, Kind: p.Type.String()}
		if p.AttachType != ebpf.AttachNone {
			v.Kind += " " + p.AttachType.String()
		}
		spec.Programs = map[string]*ebpf.ProgramSpec{name: p}
		alone, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared.Maps})
		if v.Err = err; err == nil {
			alone.Close()
		}
		all = append(all, v)
	}
	return all, nil
}

// Present is a program at a cgroup that sees the same calls as the hooks.
type Present struct {
	Cgroup string // path from the root
	Hook   string
	Name   string // "" if it has none
	ID     uint32
	// Own says that it is one of egressd, of this process or of another.
	Own bool
}

// ProgramsAt lists the programs that are at each of the cgroups at root, or above it and effective
// there, at the hooks that Attach uses and where a program may change what the
// next one sees. The error wraps ErrPrivileges where
// the kernel does not tell.
func ProgramsAt(root string, cgroups []string) ([]Present, error) {
	if err := checkCapabilities(); err != nil {
		return nil, err
	}
	var all []Present
	for _, name := range outermost(cgroups) {
		dir, err := openCgroup(cgroupDir(root, name))
		if err != nil {
			return nil, err
		}
		found, err := programsAt(dir, name)
		if err := errors.Join(err, dir.Close()); err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func programsAt(dir *os.File, name string) ([]Present, error) {
	var all []Present
	for _, h := range new(Kernel).hooks() {
		if h.attach == ebpf.AttachCgroupInetSockRelease {
			continue // whoever is there only looks
		}
		result, err := link.QueryPrograms(link.QueryOptions{
			Target:     int(dir.Fd()),
			Attach:     h.attach,
			QueryFlags: unix.BPF_F_QUERY_EFFECTIVE,
		})
		if err != nil {
			return nil, fmt.Errorf("query programs at %s of cgroup %s: %w", h.attach, name, err)
		}
		for _, p := range result.Programs {
			present := Present{Cgroup: name, Hook: h.attach.String(), ID: uint32(p.ID)}
			present.Name, present.Own = identify(p.ID)
			all = append(all, present)
		}
	}
	return all, nil
}

// identify gives the name of a program, and whether it is egressd's: each of
// those at a hook uses the map that steers the programs, or the one of
// redirected sockets.
func identify(id ebpf.ProgramID) (name string, own bool) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", false // it is gone
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", false
	}
	ids, _ := info.MapIDs()
	return info.Name, slices.ContainsFunc(ids, isOwnMap)
}

func isOwnMap(id ebpf.MapID) bool {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return false
	}
	return info.Name == egressMapControl && info.Type == ebpf.Array ||
		info.Name == egressMapRedirected && info.Type == ebpf.SkStorage
}
