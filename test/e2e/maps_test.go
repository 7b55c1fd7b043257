// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bpf makes a bpf(2) call with attr, a pointer to a part of union bpf_attr.
func bpf(command uintptr, attr unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size); errno != 0 {
		return errno
	}
	return nil
}

// entries counts the entries of the map of that name that a process has open.
func entries(t testing.TB, pid int, name string) int {
	t.Helper()
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range infos {
		if !strings.Contains(mustRead(t, path), "map_id:") {
			continue
		}
		fd, err := unix.PidfdGetfd(handle, number(filepath.Base(path)), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		var info struct { // the beginning of struct bpf_map_info
			kind, id, keySize, valueSize, maxEntries, flags uint32
			name                                            [16]byte
		}
		attr := struct {
			fd, size uint32
			info     unsafe.Pointer
		}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
		if err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			t.Fatalf("ask for the name of a map: %v", err)
		}
		if unix.ByteSliceToString(info.name[:]) == name {
			return countKeys(t, fd, int(info.keySize), int(info.maxEntries))
		}
	}
	t.Fatalf("process %d has no map %s", pid, name)
	return 0
}

func countKeys(t testing.TB, fd, size, most int) (n int) {
	t.Helper()
	key, next := make([]byte, size), make([]byte, size)
	attr := struct {
		fd, pad   uint32
		key, next unsafe.Pointer
	}{fd: uint32(fd), next: unsafe.Pointer(&next[0])} // no key: the first
	for n <= most {
		err := bpf(unix.BPF_MAP_GET_NEXT_KEY, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		if errors.Is(err, unix.ENOENT) {
			return n
		}
		if err != nil {
			t.Fatalf("walk through a map: %v", err)
		}
		n++
		copy(key, next)
		attr.key = unsafe.Pointer(&key[0])
	}
	t.Fatalf("walk through a map: it has no end after %d keys", n)
	return 0
}
