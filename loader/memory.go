// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mapMemory maps an array made with BPF_F_MMAPABLE: the very memory that the
// programs use. The result is page aligned and lives until unix.Munmap, even
// if the map is closed before.
func mapMemory(m *ebpf.Map) ([]byte, error) {
	size := int(m.MaxEntries()) * int(m.ValueSize())
	page := os.Getpagesize()
	mem, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of %s: %w", m, err)
	}
	return mem, nil
}

// records views the memory of an array map as its n values, whose size must be
// that of T and a multiple of 8: the kernel rounds each value up to that.
func records[T any](mem []byte, n uint32) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}
