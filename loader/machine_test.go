// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckKernel(t *testing.T) {
	for release, want := range map[string]error{
		"6.1.0-28-amd64": nil, "6.1": nil, "6.18.44": nil, "7.0-rc1": nil, "10.0.1": nil,
		"6.0.19": ErrKernelTooOld, "5.15.0-130-generic": ErrKernelTooOld, "4.19.0": ErrKernelTooOld,
	} {
		if got := checkKernel(release); !errors.Is(got, want) {
			t.Errorf("%s: got %v, want %v", release, got, want)
		}
	}
	if err := checkKernel("linux"); err == nil || errors.Is(err, ErrKernelTooOld) {
		t.Errorf("version without numbers: got %v, want another error than ErrKernelTooOld", err)
	}
}

func TestParseCgroup2Mount(t *testing.T) {
	for _, tt := range []struct {
		line, want string
		ok         bool
	}{
		{"31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate", "/sys/fs/cgroup", true},
		{"31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", "/sys/fs/cgroup/unified", true},
		{`31 24 0:27 / /mnt/a\040b\134c rw - cgroup2 none rw`, `/mnt/a b\c`, true},
		{"32 24 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd", "", false},
		{"33 24 0:29 / /mnt/cgroup2 rw - tmpfs cgroup2 rw", "", false},
		{"31 - cgroup2 x", "", false},
		{"", "", false},
	} {
		if got, ok := parseCgroup2Mount(tt.line); got != tt.want || ok != tt.ok {
			t.Errorf("%q: got %q, %t; want %q, %t", tt.line, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzParseCgroup2Mount(f *testing.F) {
	f.Add("31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")
	f.Add(`31 24 0:27 / /mnt/a\040b rw - cgroup2 none rw`)
	f.Add(" - cgroup2 ")
	f.Fuzz(func(t *testing.T, line string) {
		mount, ok := parseCgroup2Mount(line)
		if ok == (mount == "") {
			t.Errorf("%q: got %q, %t", line, mount, ok)
		}
		if ok && !strings.Contains(line, " - cgroup2 ") {
			t.Errorf("%q: got %q from a line of another type", line, mount)
		}
	})
}

func TestCgroupRoot(t *testing.T) {
	root, err := CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("%s: got file system %#x, %v; want cgroup2", root, fs.Type, err)
	}
	// The root cgroup is the one without a type.
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); !os.IsNotExist(err) {
		t.Errorf("%s is not the root of the hierarchy: %v", root, err)
	}
}

func TestOutermost(t *testing.T) {
	for _, tt := range []struct{ names, want []string }{
		{[]string{"/"}, []string{"/"}},
		{[]string{"a", "/a/b", "ab"}, []string{"/a", "/ab"}},
		{[]string{"a/b/c", "a/b", "a/b/"}, []string{"/a/b"}},
		{[]string{"a", "", "b"}, []string{"/"}},
		{[]string{"../../a"}, []string{"/a"}},
	} {
		if got := outermost(tt.names); !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.names, got, tt.want)
		}
	}
}

func TestOpenCgroupElsewhere(t *testing.T) {
	if _, err := openCgroup(t.TempDir()); !errors.Is(err, ErrNoCgroup2) {
		t.Errorf("directory of another file system: got %v, want ErrNoCgroup2", err)
	}
}
