// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// machine is what was found of the machine. A nil error is good news.
type machine struct {
	privileges error
	release    string
	kernel     error
	btf        error
	cgroupRoot string
	cgroupErr  error
	whole      bool // cgroupRoot shows the whole hierarchy
	hybrid     bool // controllers of v1 are mounted beside it
	pinDir     string
	pins       error
	verified   []loader.Verified
	verifyErr  error
	lockdown   string            // "", "none", "integrity" or "confidentiality"
	sysctls    map[string]string // those of sysctls that could be read
	loopback   error
}

// sysctls that are read, below /proc/sys.
const (
	panicOnWarn = "kernel/panic_on_warn"
	bpfStats    = "kernel/bpf_stats_enabled"
	bpfJIT      = "net/core/bpf_jit_enable"
)

// examine looks at the machine. Loading programs takes privileges.
func examine(pinDir string) machine {
	m := machine{
		privileges: loader.CheckPrivileges(),
		btf:        loader.CheckBTF(),
		pinDir:     pinDir,
		sysctls:    make(map[string]string),
		loopback:   checkLoopback(),
		hybrid:     mountsCgroup1(),
		lockdown:   readLockdown("/sys/kernel/security/lockdown"),
	}
	var uts unix.Utsname
	if m.kernel = unix.Uname(&uts); m.kernel == nil {
		m.release = unix.ByteSliceToString(uts.Release[:])
		m.kernel = loader.CheckKernel(m.release)
	}
	if m.cgroupRoot, m.cgroupErr = loader.CgroupRoot(); m.cgroupErr == nil {
		m.whole = loader.IsCgroupRoot(m.cgroupRoot)
	}
	if pinDir != "" {
		m.pins = loader.CheckPinDir(pinDir)
	}
	if m.privileges == nil && m.kernel == nil && m.btf == nil {
		m.verified, m.verifyErr = loader.Verify()
	}
	for _, name := range []string{panicOnWarn, bpfStats, bpfJIT} {
		if text, err := os.ReadFile("/proc/sys/" + name); err == nil {
			m.sysctls[name] = strings.TrimSpace(string(text))
		}
	}
	return m
}

// checks makes of it what people want to know, most fundamental first.
func (m machine) checks() []Check {
	return []Check{
		m.checkPrivileges(), m.checkKernel(), m.checkBTF(), m.checkLockdown(), m.checkCgroup(),
		m.checkPins(), m.checkPrograms(), m.checkLoopback(), m.checkSysctls(),
	}
}

func (m machine) checkPrivileges() Check {
	const name = "privileges"
	if m.privileges != nil {
		// That the doctor lacks them says nothing of the daemon.
		c := unknown(name, fmt.Sprintf("this process may not load programs (%s)", reason(m.privileges, loader.ErrPrivileges)))
		c.Remedy = "run it as root, as the daemon is: sudo egressd doctor"
		return c
	}
	return ok(name, "programs may be loaded and attached")
}

func (m machine) checkKernel() Check {
	const name = "kernel"
	switch {
	case errors.Is(m.kernel, loader.ErrKernelTooOld):
		return fail(name, "boot a kernel of 6.1 or later", "%s", reason(m.kernel, loader.ErrKernelTooOld))
	case m.kernel != nil:
		return unknown(name, m.kernel.Error())
	}
	if lacks := lacking(m.release); lacks != "" {
		return ok(name, "Linux %s, which lacks %s", m.release, lacks)
	}
	return ok(name, "Linux %s", m.release)
}

// kernelLacks are what some kernels lack or do wrong that egressd can live with.
var kernelLacks = []struct {
	from, before [2]int // release
	what         string
}{
	{[2]int{0, 0}, [2]int{6, 6}, "true peer addresses for mounts of NFS and SMB (6.6): their ports stay untouched"},
	{[2]int{6, 11}, [2]int{6, 14}, "return probes that are safe under seccomp (6.14): processes with a filter are not probed"},
}

// lacking says what a release lacks, "" for nothing.
func lacking(release string) string {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return ""
	}
	at := []int{major, minor}
	var found []string
	for _, k := range kernelLacks {
		if slices.Compare(at, k.from[:]) >= 0 && slices.Compare(at, k.before[:]) < 0 {
			found = append(found, k.what)
		}
	}
	return strings.Join(found, "; ")
}

func (m machine) checkBTF() Check {
	const name = "kernel types"
	if m.btf != nil {
		return fail(name, "mount /sys, or boot a kernel with CONFIG_DEBUG_INFO_BTF=y", "no BTF at /sys/kernel/btf/vmlinux")
	}
	return ok(name, "BTF at /sys/kernel/btf/vmlinux")
}

func (m machine) checkLockdown() Check {
	const name = "lockdown"
	switch m.lockdown {
	case "confidentiality":
		return fail(name, "boot with lockdown=integrity, or without lockdown", "the kernel is locked down for confidentiality: programs may not read its memory")
	case "":
		return ok(name, "the kernel has none")
	}
	return ok(name, "%s", m.lockdown)
}

func (m machine) checkCgroup() Check {
	const name = "cgroup v2"
	if m.cgroupErr != nil {
		return fail(name, "mount it: mount -t cgroup2 none /sys/fs/cgroup", "%v", m.cgroupErr)
	}
	if !m.whole {
		return warn(name, "run egressd on the host, or give its container the host's cgroup namespace",
			"%s shows a part of the hierarchy only: processes outside of it cannot be shaped", m.cgroupRoot)
	}
	if m.hybrid {
		return ok(name, "root of the hierarchy at %s, beside controllers of v1", m.cgroupRoot)
	}
	return ok(name, "root of the hierarchy at %s", m.cgroupRoot)
}

func (m machine) checkPins() Check {
	const name = "BPF file system"
	switch {
	case m.pinDir == "":
		return ok(name, "not needed: the ledger is not pinned")
	case errors.Is(m.pins, fs.ErrPermission):
		return unknown(name, m.pins.Error())
	case m.pins != nil:
		return fail(name, "mount -t bpf bpf /sys/fs/bpf, or start egressd run with --pin-dir=", "%v", m.pins)
	}
	return ok(name, "the ledger can be pinned in %s", m.pinDir)
}

func (m machine) checkPrograms() Check {
	const name = "programs"
	switch {
	case m.kernel != nil || m.btf != nil:
		return fail(name, "see what the kernel lacks, above", "they need what this kernel does not have")
	case m.privileges != nil:
		return unknown(name, "the kernel verifies them for root only")
	}
	if m.verifyErr != nil {
		return fail(name, "look into the kernel's log for the reason: dmesg | tail", "%v", m.verifyErr)
	}
	var refused []string
	var first error
	for _, v := range m.verified {
		if v.Err == nil {
			continue
		}
		refused = append(refused, fmt.Sprintf("%s (%s)", v.Program, v.Kind))
		if first == nil {
			first = v.Err
		}
	}
	if refused != nil {
		return fail(name, "boot a kernel with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and CONFIG_INET, and report the message if it has them",
			"the kernel refuses %s: %v", strings.Join(refused, ", "), first)
	}
	return ok(name, "all %d verified by this kernel", len(m.verified))
}

func (m machine) checkLoopback() Check {
	const name = "loopback"
	if m.loopback != nil {
		return fail(name, "ip link set lo up", "%v: connections are led to the proxy by it", m.loopback)
	}
	return ok(name, "up")
}

func (m machine) checkSysctls() Check {
	const name = "sysctls"
	var findings, remedies []string
	for _, s := range []struct{ name, bad, finding, remedy string }{
		{panicOnWarn, "1", "kernel.panic_on_warn is on: a warning of the kernel ends the machine, so uprobes stay off", "sysctl kernel.panic_on_warn=0"},
		{bpfStats, "1", "kernel.bpf_stats_enabled is on: each run of a program takes some 20 ns longer", "sysctl kernel.bpf_stats_enabled=0"},
		{bpfJIT, "0", "net.core.bpf_jit_enable is off: programs are interpreted, several times slower", "sysctl net.core.bpf_jit_enable=1"},
	} {
		if m.sysctls[s.name] == s.bad {
			findings, remedies = append(findings, s.finding), append(remedies, s.remedy)
		}
	}
	if findings != nil {
		return warn(name, strings.Join(remedies, "; "), "%s", strings.Join(findings, "; "))
	}
	return ok(name, "nothing that is in the way")
}

// checkLoopback says whether the loopback device of this namespace is down.
func checkLoopback() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("find device lo: %w", err)
	}
	if lo.Flags&net.FlagUp == 0 {
		return errors.New("device lo is down")
	}
	return nil
}

// mountsCgroup1 reports whether controllers of cgroup v1 are mounted.
func mountsCgroup1() bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
		_, after, _ := strings.Cut(line, " - ")
		return strings.HasPrefix(after, "cgroup ")
	})
}

// readLockdown is the mode in brackets of "none [integrity] confidentiality",
// "" where the kernel has no lockdown.
func readLockdown(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(text, []byte("["))
	mode, _, found := bytes.Cut(after, []byte("]"))
	if !found {
		return ""
	}
	return string(mode)
}

// openFiles reads the limits of open files from /proc/PID/limits.
func openFiles(limits []byte) (soft, hard uint64, ok bool) {
	for l := range bytes.Lines(limits) {
		rest, is := bytes.CutPrefix(l, []byte("Max open files"))
		fields := bytes.Fields(rest)
		if !is || len(fields) < 2 {
			continue
		}
		soft, okSoft := limit(fields[0])
		hard, okHard := limit(fields[1])
		return soft, hard, okSoft && okHard
	}
	return 0, 0, false
}

func limit(text []byte) (uint64, bool) {
	if string(text) == "unlimited" {
		return ^uint64(0), true
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	return n, err == nil
}
