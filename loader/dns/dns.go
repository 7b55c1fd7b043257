// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// DefaultRingBytes is the size of the ring between the program and Run.
const DefaultRingBytes = 1 << 20

// MaxMessage is the size in bytes of the longest message that is seen.
const MaxMessage = 16384

// Config says whose answers are seen.
type Config struct {
	// Root is where the cgroup v2 hierarchy is; "" asks loader.CgroupRoot.
	Root string
	// Cgroups are paths from Root. Sockets of their processes, and of those
	// below, are seen. Empty means the root.
	Cgroups []string
	// RingBytes is a power of two and a multiple of the page size; 0 means
	// DefaultRingBytes.
	RingBytes uint32
}

// Reader is the loaded program. Its methods are safe for concurrent use, except
// that none may run during or after Close, and Run only once at a time.
type Reader struct {
	root    string
	cgroups []string
	objs    dnsObjects
	reader  *ringbuf.Reader

	mu       sync.Mutex
	links    []link.Link
	excluded map[uint64]struct{} // what the map has
}

// Open loads the program. Nothing is seen before Attach. The caller must Close
// the result.
//
// Errors wrap loader.ErrPrivileges or loader.ErrNoCgroup2 where one of them is
// the reason.
func Open(cfg Config) (_ *Reader, err error) {
	if cfg.RingBytes == 0 {
		cfg.RingBytes = DefaultRingBytes
	}
	if len(cfg.Cgroups) == 0 {
		cfg.Cgroups = []string{"/"}
	}
	if cfg.Root == "" {
		if cfg.Root, err = loader.CgroupRoot(); err != nil {
			return nil, err
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove memory lock limit: %w", err)
	}
	r := &Reader{root: cfg.Root, cgroups: cfg.Cgroups, excluded: make(map[uint64]struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := r.load(cfg.RingBytes); err != nil {
		return nil, err
	}
	if r.reader, err = ringbuf.NewReader(r.objs.Answers); err != nil {
		return nil, fmt.Errorf("open ring of DNS answers: %w", err)
	}
	return r, nil
}

func (r *Reader) load(ringBytes uint32) error {
	spec, err := loadDns()
	if err != nil {
		return fmt.Errorf("read embedded program: %w", err)
	}
	if n := spec.Maps[dnsMapTallies].MaxEntries; n != uint32(dnsTallyTALLY_MAX) {
		return fmt.Errorf("program has %d counters, the loader knows %d", n, dnsTallyTALLY_MAX)
	}
	spec.Maps[dnsMapAnswers].MaxEntries = ringBytes
	err = spec.LoadAndAssign(&r.objs, nil)
	if err == nil {
		return nil
	}
	if verifier, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		return fmt.Errorf("load reader of DNS answers: %w\n%+v", err, verifier)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the kernel forbids to load programs: %w", loader.ErrPrivileges, err)
	}
	return fmt.Errorf("load reader of DNS answers: %w", err)
}

// Attach puts the program at all cgroups, or at none. The links end with the
// process, with Detach or with Close. Attaching what is attached does nothing.
func (r *Reader) Attach() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links != nil {
		return nil
	}
	dirs, err := loader.OpenCgroups(r.root, r.cgroups)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err == nil {
			err = r.attach(dir)
		}
		err = errors.Join(err, dir.Close())
	}
	if err != nil {
		err = errors.Join(err, r.detach())
	}
	return err
}

// attach makes a raw link, since AttachCgroup falls back to an attachment that
// outlives the process.
func (r *Reader) attach(dir *os.File) error {
	l, err := link.AttachRawLink(link.RawLinkOptions{
		Target:  int(dir.Fd()),
		Program: r.objs.AnswersIn,
		Attach:  ebpf.AttachCGroupInetIngress,
	})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: attach reader of DNS answers to cgroup %s: %w", loader.ErrPrivileges, dir.Name(), err)
	}
	if err != nil {
		return fmt.Errorf("attach reader of DNS answers to cgroup %s: %w", dir.Name(), err)
	}
	r.links = append(r.links, l)
	return nil
}

// Detach takes the program off; what is in the ring is still handed over.
// Detaching what is not attached does nothing.
func (r *Reader) Detach() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.detach()
}

func (r *Reader) detach() error {
	var errs []error
	for _, l := range r.links {
		errs = append(errs, l.Close())
	}
	r.links = nil
	return errors.Join(errs...)
}

// Close takes the program off and gives everything back.
func (r *Reader) Close() error {
	errs := []error{r.Detach()}
	if r.reader != nil {
		errs = append(errs, r.reader.Close())
		r.reader = nil
	}
	if r.objs.AnswersIn != nil {
		errs = append(errs, r.objs.Close())
		r.objs = dnsObjects{}
	}
	return errors.Join(errs...)
}
