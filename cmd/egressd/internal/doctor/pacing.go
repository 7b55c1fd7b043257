// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/egressd/egressd/loader/pacer"
	"github.com/egressd/egressd/policy"
)

// pacing is what was found of the devices by which connections leave, in the
// daemon's network namespace. Those of containers are served by the proxy.
type pacing struct {
	state pacer.State
	err   error
	fq    fqModule
	// running says that a daemon is at work, with programs; privileged, that
	// programs at devices can be seen.
	running, privileged bool
}

// fqModule says whether the kernel has sch_fq. The set is closed.
type fqModule uint8

const (
	fqUnknown   fqModule = iota
	fqThere              // built in, or loaded
	fqLoadable           // the kernel loads it when it is asked for
	fqForbidden          // it is on the disk, but no module may be loaded any more
	fqMissing            // the kernel was built for it, but its module is not on the disk
	fqNone               // the kernel was built without
)

// lookAtPacing looks at the namespace of a process, 0 for this one. It loads
// nothing.
func lookAtPacing(pid int, m machine, root fs.FS) pacing {
	p := pacing{fq: findFQ(root, m.release), running: pid != 0, privileged: m.privileges == nil}
	netns := ""
	if pid != 0 && p.privileged {
		netns = fmt.Sprintf("/proc/%d/ns/net", pid)
	}
	p.state, p.err = pacer.Look(netns)
	return p
}

// check says how budgets of connections are kept on the way out.
func (p pacing) check(pol *policy.Policy) Check {
	const name = "pacing"
	if !slices.ContainsFunc(pol.Budgets, func(b *policy.Budget) bool {
		return b.Unit == policy.Connections && b.Mode != policy.Off
	}) {
		return ok(name, "no budget counts connections: fq is not needed")
	}
	if p.err != nil {
		return unknown(name, p.err.Error())
	}
	var paced, others, idle []string // devices
	var first pacer.Device           // of others
	for _, d := range p.state.Devices {
		switch {
		case !d.Routed:
		case p.pacedBy(d):
			paced = append(paced, fmt.Sprintf("%s (%s)", d.Name, strings.Join(pacedWords(d), ", ")))
		case d.Holds() && d.Attached == "" && p.running && p.privileged:
			idle = append(idle, d.Name)
		default:
			if others == nil {
				first = d
			}
			words := d.Qdisc
			if d.FQ {
				words += fmt.Sprintf(", for at most %v", d.Horizon)
			}
			others = append(others, fmt.Sprintf("%s (%s)", d.Name, words))
		}
	}
	const instead = "connections are held by the proxy there, or refused where it cannot take them"
	switch {
	case paced == nil && others == nil && idle == nil:
		return ok(name, "no device leads out")
	case idle != nil:
		return warn(name, "look into the daemon's log", "fq is at %s, but no program of egressd: %s", strings.Join(idle, ", "), instead)
	case others == nil:
		return ok(name, "connections wait in the kernel, by fq at %s", strings.Join(paced, ", "))
	}
	finding := "no fq that waits at " + strings.Join(others, ", ") + ": " + instead
	if paced != nil {
		finding += "; they wait in the kernel at " + strings.Join(paced, ", ")
	}
	return warn(name, p.remedy(first, pol), "%s", finding)
}

// pacedBy reports whether connections wait at the device, or would as soon as a
// daemon runs.
func (p pacing) pacedBy(d pacer.Device) bool {
	if d.Paced {
		return true
	}
	return d.Holds() && d.Attached == "" && (!p.running || !p.privileged)
}

// pacedWords say how a device is paced.
func pacedWords(d pacer.Device) []string {
	words := []string{d.Qdisc}
	if d.Lower != nil {
		words = []string{"through " + strings.Join(d.Lower, " and ")}
	}
	if d.Attached != "" {
		words = append(words, d.Attached)
	}
	if d.Horizon > 0 {
		words = append(words, fmt.Sprintf("for at most %v", d.Horizon))
	}
	if d.Ours {
		words = append(words, "installed by egressd")
	}
	if d.Foreign != nil {
		words = append(words, "before "+strings.Join(d.Foreign, ", "))
	}
	return words
}

// remedy says how a device gets fq.
func (p pacing) remedy(d pacer.Device, pol *policy.Policy) string {
	switch p.fq {
	case fqNone:
		return "nothing to do, unless the kernel shall do it: boot one with CONFIG_NET_SCH_FQ"
	case fqMissing:
		return "install the package with the kernel's further modules: sch_fq is not among those in /lib/modules"
	case fqForbidden:
		return "reboot, and load sch_fq before kernel.modules_disabled is set"
	}
	byHand := fmt.Sprintf("tc qdisc replace dev %s root fq horizon 60s", d.Name)
	switch {
	case d.FQ:
		return "let its fq hold packets longer: " + byHand
	case pol.Qdisc != policy.QdiscFQ:
		return "write qdisc: fq into the policy file, or for each device: " + byHand
	case !p.running:
		return "start the daemon: its policy file says qdisc: fq"
	default:
		return "its log says why qdisc: fq left a device alone; then, if it shall be: " + byHand
	}
}

// findFQ looks for sch_fq in the file system of a machine that runs this
// release of the kernel.
func findFQ(root fs.FS, release string) fqModule {
	if _, err := fs.Stat(root, "sys/module/sch_fq"); err == nil {
		return fqThere
	}
	modules := "lib/modules/" + release
	if lists(root, modules+"/modules.builtin") {
		return fqThere
	}
	switch config := configured(root, release); {
	case config == "y":
		return fqThere
	case config == "n":
		return fqNone
	case lists(root, modules+"/modules.dep"):
		if text, err := fs.ReadFile(root, "proc/sys/kernel/modules_disabled"); err == nil && strings.TrimSpace(string(text)) == "1" {
			return fqForbidden
		}
		return fqLoadable
	case config == "m":
		return fqMissing
	}
	return fqUnknown
}

// lists reports whether a list of modules has sch_fq, compressed or not.
func lists(root fs.FS, name string) bool {
	text, err := fs.ReadFile(root, name)
	return err == nil && bytes.Contains(text, []byte("/net/sched/sch_fq.ko"))
}

// configured is the value of CONFIG_NET_SCH_FQ: "y", "m", "n", or "" where
// nobody knows.
func configured(root fs.FS, release string) string {
	if f, err := root.Open("boot/config-" + release); err == nil {
		defer f.Close()
		return readConfig(f)
	}
	f, err := root.Open("proc/config.gz")
	if err != nil {
		return ""
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	return readConfig(z)
}

func readConfig(r io.Reader) string {
	const key = "CONFIG_NET_SCH_FQ"
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "# "+key+" is not set":
			return "n"
		case strings.HasPrefix(line, key+"="):
			if value := strings.TrimPrefix(line, key+"="); value == "y" || value == "m" {
				return value
			}
		}
	}
	return ""
}
