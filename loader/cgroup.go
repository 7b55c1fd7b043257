// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rootCgroupInode is the inode, and the cgroup id, of the root of every
// cgroup v2 hierarchy (kernfs numbers from 1). A mount that shows another one
// shows a part of the hierarchy: a bind mount or a cgroup namespace.
const rootCgroupInode = 1

// CgroupRoot returns a path at which the root of the cgroup v2 hierarchy can
// be reached. The mount is found by file system type, since hybrid hosts have
// it in other places than /sys/fs/cgroup, and is looked for in init's mount
// namespace first: a service or container may see only its own part. If no
// mount shows the root, the first one that there is will be returned; if there
// is none, the error is ErrNoCgroup2.
func CgroupRoot() (string, error) {
	var partial string
	for _, view := range []struct{ mounts, prefix string }{
		{"/proc/1/mountinfo", "/proc/1/root"},
		{"/proc/self/mountinfo", ""},
	} {
		for _, mount := range cgroup2Mounts(view.mounts) {
			dir := view.prefix + mount
			if direct := sameDir(mount, dir); direct {
				dir = mount // the shorter name, for messages
			}
			id, err := cgroupID(dir)
			switch {
			case err != nil:
			case id == rootCgroupInode:
				return dir, nil
			case partial == "":
				partial = dir
			}
		}
	}
	if partial != "" {
		return partial, nil
	}
	return "", fmt.Errorf("%w is mounted: mount -t cgroup2 none /sys/fs/cgroup", ErrNoCgroup2)
}

// cgroup2Mounts lists the mount points of type cgroup2. A table that cannot be
// read has none: the caller has another.
func cgroup2Mounts(mountinfo string) []string {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil
	}
	defer f.Close()
	var mounts []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if mount, ok := parseCgroup2Mount(lines.Text()); ok {
			mounts = append(mounts, mount)
		}
	}
	return mounts
}

// parseCgroup2Mount reads one line of mountinfo, see proc(5): the mount point
// is the fifth field, the type the first after a lone hyphen.
func parseCgroup2Mount(line string) (mount string, ok bool) {
	before, after, ok := strings.Cut(line, " - ")
	if !ok || !strings.HasPrefix(after, "cgroup2 ") {
		return "", false
	}
	fields := strings.Fields(before)
	if len(fields) < 6 {
		return "", false
	}
	return unescapeMount.Replace(fields[4]), true
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func sameDir(a, b string) bool {
	sa, errA := os.Stat(a)
	sb, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(sa, sb)
}

// cgroupID is the id by which the programs know the cgroup: its inode, on
// every 64-bit kernel.
func cgroupID(dir string) (uint64, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}

// cgroupDir is the directory of a cgroup that policy names by its path from
// the root of the hierarchy.
func cgroupDir(root, name string) string {
	return filepath.Join(root, path.Clean("/"+name))
}

// openCgroup opens the directory of a cgroup for attaching.
func openCgroup(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		f.Close()
		return nil, fmt.Errorf("open cgroup %s: %w", dir, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		f.Close()
		return nil, fmt.Errorf("open cgroup %s: %w there", dir, ErrNoCgroup2)
	}
	return f, nil
}

// outermost drops the cgroups that lie below another one of the list: the
// hooks of both would see every connection of the inner one.
func outermost(names []string) []string {
	var kept []string
	for i, name := range names {
		name = path.Clean("/" + name)
		covered := false
		for j, other := range names {
			other = path.Clean("/" + other)
			if i == j {
				continue
			}
			if name == other {
				covered = covered || j < i
				continue
			}
			covered = covered || strings.HasPrefix(name, strings.TrimSuffix(other, "/")+"/")
		}
		if !covered {
			kept = append(kept, name)
		}
	}
	return kept
}
