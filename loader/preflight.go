// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The programs use helpers that cgroup hooks have since 6.1
// (bpf_set_retval in connect hooks, task helpers).
const (
	minKernelMajor = 6
	minKernelMinor = 1
)

// preflight finds out cheaply what would make loading fail, so that the user
// reads one line instead of a verifier log.
func preflight() error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	if err := checkKernel(unix.ByteSliceToString(uts.Release[:])); err != nil {
		return err
	}
	return checkBTF()
}

func checkBTF() error {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return fmt.Errorf("%w: it must be built with CONFIG_DEBUG_INFO_BTF=y and /sys must be mounted: %w", ErrNoBTF, err)
	}
	return nil
}

func checkKernel(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("parse kernel version %q: %w", release, err)
	}
	if major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		return fmt.Errorf("%w: this is %s, egressd needs %d.%d or later", ErrKernelTooOld, release, minKernelMajor, minKernelMinor)
	}
	return nil
}

// neededCapabilities with the reason for each. CAP_SYS_ADMIN includes the
// first two.
var neededCapabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_BPF", unix.CAP_BPF},             // maps and programs
	{"CAP_PERFMON", unix.CAP_PERFMON},     // programs that read kernel structs
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, // cgroup hooks, SO_MARK, SO_BINDTODEVICE
}

func checkCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var missing []string
	for _, c := range neededCapabilities {
		covered := c.bit != unix.CAP_NET_ADMIN && has(unix.CAP_SYS_ADMIN)
		if !has(c.bit) && !covered {
			missing = append(missing, c.name)
		}
	}
	if missing != nil {
		return fmt.Errorf("%w: run as root, or with the missing %s", ErrPrivileges, strings.Join(missing, ", "))
	}
	return nil
}
