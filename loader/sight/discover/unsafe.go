// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader/sight"
)

// Host is what decides on a machine whether probes may do harm.
type Host struct {
	Release     string // of the kernel, as uname tells it
	Arch        string // as runtime.GOARCH
	PanicOnWarn bool
	// Filtered is how many processes have a seccomp filter. It is only looked
	// for where it matters and is 0 elsewhere.
	Filtered int
}

// ReadHost reads what Unsafe needs to know.
func ReadHost() (Host, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Host{}, fmt.Errorf("read kernel version: %w", err)
	}
	h := Host{Release: unix.ByteSliceToString(uts.Release[:]), Arch: runtime.GOARCH}
	b, err := os.ReadFile("/proc/sys/kernel/panic_on_warn")
	switch {
	case err == nil:
		h.PanicOnWarn = string(bytes.TrimSpace(b)) != "0"
	case !errors.Is(err, fs.ErrNotExist):
		return Host{}, fmt.Errorf("read panic_on_warn: %w", err)
	}
	if h.filtersKill() {
		if h.Filtered, err = countFiltered(); err != nil {
			return Host{}, err
		}
	}
	return h, nil
}

// filtersKill reports whether a return probe is a system call that seccomp
// filters see: the kernel has it since 6.11, on amd64 alone, and lets it pass
// every filter since 6.14. Stable releases between may have the correction;
// their version does not tell.
func (h Host) filtersKill() bool {
	var major, minor int
	if _, err := fmt.Sscanf(h.Release, "%d.%d", &major, &minor); err != nil {
		return true // an unknown kernel gets no benefit of the doubt
	}
	return h.Arch == "amd64" && major == 6 && minor >= 11 && minor <= 13
}

// Unsafe lists the reasons, for people, why functions of this library should
// not be probed on a machine. There are none on most.
func Unsafe(h Host, lib sight.Library) []string {
	var why []string
	if h.PanicOnWarn {
		why = append(why, "kernel.panic_on_warn is set, and placing a probe can make the kernel warn: the machine would stop")
	}
	// Neither Go nor BIO_write gets return probes. All others do, and a probe
	// is seen by every process that maps the file, whatever it belongs to.
	returns := lib == sight.OpenSSL || lib == sight.GnuTLS
	if returns && h.Filtered > 0 && h.filtersKill() {
		why = append(why, fmt.Sprintf("kernel %s shows return probes to seccomp filters, which may kill any of %d processes that have one: "+
			"use 6.14 or later, or 6.10 or earlier", h.Release, h.Filtered))
	}
	return why
}

// countFiltered counts the processes with a seccomp filter.
func countFiltered() (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && filtered(b) {
			n++
		}
	}
	return n, nil
}

// filtered reads /proc/PID/status (proc(5)): Seccomp is 0 for a process
// without any. Lines cannot be forged: the name's are escaped.
func filtered(status []byte) bool {
	for line := range bytes.Lines(status) {
		if v, ok := bytes.CutPrefix(line, []byte("Seccomp:")); ok {
			return string(bytes.TrimSpace(v)) != "0"
		}
	}
	return false
}
