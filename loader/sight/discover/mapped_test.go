// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"os"
	"slices"
	"syscall"
	"testing"
)

func TestMapped(t *testing.T) {
	files, err := Mapped(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	if !slices.ContainsFunc(files, func(f [2]uint64) bool { return f[1] == inode }) {
		t.Errorf("own program, inode %d, is not among %v", inode, files)
	}
	if _, err := Mapped(1 << 30); err == nil {
		t.Error("a process that does not exist maps files")
	}
}
