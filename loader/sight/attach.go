// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachment is the probes on one file.
type attachment struct {
	sight *Sight
	once  sync.Once
	err   error
	// links in the order of attaching: what closes a call before what opens
	// it. Taking off goes the other way.
	links []link.Link
}

// Close takes the probes off. Calls that are under way return as they would.
func (a *attachment) Close() error {
	a.once.Do(func() {
		var errs []error
		for i := len(a.links) - 1; i >= 0; i-- {
			errs = append(errs, a.links[i].Close())
		}
		a.sight.mu.Lock()
		delete(a.sight.attached, a)
		a.sight.mu.Unlock()
		a.err = errors.Join(errs...)
	})
	return a.err
}

// Attach puts probes on the functions of a file. All processes that map it are
// concerned at once, and those that map it later; which of them are seen is
// the scope's affair. Closing the result takes the probes off, as Close of the
// Sight does. Either all functions are probed or none.
func (s *Sight) Attach(t Target) (_ io.Closer, err error) {
	plans, err := planOf(t)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", t.describe(), err)
	}
	// The descriptor holds the file that was checked, whatever Path leads to
	// a moment later.
	f, err := os.Open(t.Path)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", t.describe(), err)
	}
	defer f.Close()
	if err := t.check(f); err != nil {
		return nil, fmt.Errorf("probe %s: %w", t.describe(), err)
	}
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", t.describe(), err)
	}
	a := &attachment{sight: s}
	s.mu.Lock()
	s.attached[a] = struct{}{}
	s.mu.Unlock()
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	for h := hook(0); h < numHooks; h++ {
		if err := a.add(exe, h, plans[h]); err != nil {
			return nil, fmt.Errorf("probe %s: %w", t.describe(), err)
		}
	}
	return a, nil
}

// add attaches the program of one hook at all its places.
func (a *attachment) add(exe *link.Executable, h hook, places []place) error {
	if len(places) == 0 {
		return nil
	}
	program := a.sight.program(h)
	if a.sight.support.Multi {
		opts := new(link.UprobeMultiOptions)
		for _, p := range places {
			opts.Addresses = append(opts.Addresses, p.offset)
			opts.Cookies = append(opts.Cookies, p.cookie)
		}
		attach := exe.UprobeMulti
		if h.onReturn() {
			attach = exe.UretprobeMulti
		}
		l, err := attach(nil, program, opts)
		if err != nil {
			return fmt.Errorf("attach %s: %w", h, err)
		}
		a.links = append(a.links, l)
		return nil
	}
	attach := exe.Uprobe
	if h.onReturn() {
		attach = exe.Uretprobe
	}
	for _, p := range places {
		l, err := attach("", program, &link.UprobeOptions{Address: p.offset, Cookie: p.cookie})
		if err != nil {
			return fmt.Errorf("attach %s at %#x: %w", h, p.offset, err)
		}
		a.links = append(a.links, l)
	}
	return nil
}

func (s *Sight) program(h hook) *ebpf.Program {
	switch h {
	case hookLeave:
		return s.objs.Leave
	case hookGoLeave:
		return s.objs.GoLeave
	case hookFree:
		return s.objs.SslFree
	case hookBIOWrite:
		return s.objs.BioWrite
	case hookSetFD:
		return s.objs.SetFd
	case hookGoEnter:
		return s.objs.GoEnter
	default:
		return s.objs.Enter
	}
}

// check compares the file with what was found.
func (t *Target) check(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	// The device in /proc/PID/maps may differ from that of stat (btrfs,
	// overlayfs), so the inode alone is compared.
	if t.Inode != 0 && st.Ino != t.Inode {
		return fmt.Errorf("another file: inode %d, want %d", st.Ino, t.Inode)
	}
	return nil
}

func (t *Target) describe() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Path
}
