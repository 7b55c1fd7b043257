// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"unsafe"
)

// ownMapping returns the file that is mapped at the start of mem in this
// process.
func ownMapping(mem []byte) (fileID, error) {
	return ownAddress(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))))
}

// ownProgram returns the file of this program: it is never to be probed.
func ownProgram() (fileID, error) {
	return ownAddress(uint64(reflect.ValueOf(ownProgram).Pointer()))
}

func ownAddress(addr uint64) (fileID, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return fileID{}, err
	}
	defer f.Close()
	var found fileID
	err = everyMapping(f, func(m mapping) bool {
		if m.start <= addr && addr < m.end {
			found = m.file
		}
		return found.inode == 0
	})
	switch {
	case err != nil:
		return fileID{}, fmt.Errorf("read own maps: %w", err)
	case found.inode == 0:
		return fileID{}, errors.New("own mapping not found")
	}
	return found, nil
}
