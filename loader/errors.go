// SPDX-License-Identifier: Apache-2.0

package loader

import "errors"

// What is wrong with the machine rather than with egressd. Open and Attach
// wrap them; the text after them says what was found.
var (
	// ErrPrivileges means that the process may not load or attach programs.
	ErrPrivileges = errors.New("not enough privileges")
	// ErrKernelTooOld means a kernel before 6.1.
	ErrKernelTooOld = errors.New("kernel too old")
	// ErrNoBTF means a kernel without type information of its own.
	ErrNoBTF = errors.New("kernel without BTF")
	// ErrNoCgroup2 means that no cgroup v2 hierarchy is mounted.
	ErrNoCgroup2 = errors.New("no cgroup v2 hierarchy")
	// ErrNoBPFFS means that the pin directory is not on a BPF file system.
	ErrNoBPFFS = errors.New("not on a BPF file system")
	// ErrBusy means that another daemon holds the cgroup or the ledger.
	ErrBusy = errors.New("in use by another egressd")
	// ErrLayout means a pinned ledger of another shape.
	ErrLayout = errors.New("pinned ledger has another layout")
	// ErrIndexFull means that no more lanes fit in the ledger.
	ErrIndexFull = errors.New("lane index is full")
	// ErrNetnsFull means that no more network namespaces can be enrolled.
	ErrNetnsFull = errors.New("too many network namespaces enrolled")
)
