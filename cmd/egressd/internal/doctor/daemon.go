// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
)

// Daemon is what the doctor asks of one that runs. *admin.Client is one.
type Daemon interface {
	Status(ctx context.Context) (admin.Status, error)
	Flows(ctx context.Context) ([]admin.Flow, error)
}

// running is what was found of the daemon.
type running struct {
	now       time.Time
	status    *admin.Status // nil: none answers
	statusErr error
	limits    []byte // /proc/PID/limits
	limitsErr error
	listeners []uint16 // ports of all addresses, in its network namespace
	listenErr error
	programs  []loader.Present
	presentEr error
}

// patience is how long a daemon may take to answer.
const patience = 3 * time.Second

// ask asks the daemon, and looks at its process.
func ask(ctx context.Context, d Daemon, root string, cgroups []string) running {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := running{now: time.Now()}
	pid := os.Getpid()
	if s, err := d.Status(ctx); err != nil {
		r.statusErr = err
	} else {
		r.status, pid = &s, s.PID
		r.listeners, r.listenErr = listeners(pid)
		// That of the metrics is another one.
		if at, err := netip.ParseAddrPort(s.Metrics); err == nil {
			r.listeners = slices.DeleteFunc(r.listeners, func(port uint16) bool { return port == at.Port() })
		}
		if s.Kernel != nil && len(s.Kernel.Cgroups) > 0 {
			cgroups = s.Kernel.Cgroups
		}
	}
	r.limits, r.limitsErr = os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if root == "" {
		r.presentEr = loader.ErrNoCgroup2
	} else {
		r.programs, r.presentEr = loader.ProgramsAt(root, cgroups)
	}
	return r
}

// checks makes of it what people want to know.
func (r running) checks() []Check {
	all := []Check{r.checkDaemon()}
	if r.status != nil {
		all = append(all, r.checkPolicy(), r.checkCanary(), r.checkListener(), r.checkGates())
	}
	return append(all, r.checkForeign(), r.checkFiles())
}

func (r running) checkDaemon() Check {
	const name = "daemon"
	switch {
	case errors.Is(r.statusErr, admin.ErrNotAllowed):
		return unknown(name, r.statusErr.Error())
	case errors.Is(r.statusErr, admin.ErrNotRunning):
		if r.attached() {
			return warn(name, "name its admin socket with --socket; if there is none, that is egressd exec or demo at work",
				"%v, but programs of one are attached", r.statusErr)
		}
		return warn(name, "start it: sudo egressd run", "%v: nothing is shaped", r.statusErr)
	case r.statusErr != nil:
		return fail(name, "look into its log; if it hangs, end it: connections are native then", "%v", r.statusErr)
	case r.status.Kernel == nil:
		return warn(name, "restart it without --no-bpf to shape processes without their help", "pid %d, without programs", r.status.PID)
	case !r.status.Kernel.Attached:
		return fail(name, "look into its log: it is starting or ending, or could not attach", "pid %d, but its programs are not attached", r.status.PID)
	}
	return ok(name, "pid %d, attached to %s", r.status.PID, strings.Join(r.status.Kernel.Cgroups, ", "))
}

// pid is the process of the daemon, if one runs that has programs; else 0.
func (r running) pid() int {
	if r.status == nil || r.status.Kernel == nil {
		return 0
	}
	return r.status.PID
}

// attached reports whether programs of some egressd are there.
func (r running) attached() bool {
	return slices.ContainsFunc(r.programs, func(p loader.Present) bool { return p.Own })
}

func (r running) checkPolicy() Check {
	const name = "policy in force"
	c := r.status.Config
	if !c.OK {
		return warn(name, "mend the file, then: systemctl reload egressd, or send SIGHUP", "the last reload failed, the old policy stays: %s", c.Error)
	}
	if len(c.Budgets) == 0 {
		return warn(name, "write a budget into the policy file", "no budgets: every connection goes untouched")
	}
	return ok(name, "%d budget%s, read without errors", len(c.Budgets), plural(len(c.Budgets)))
}

// canaryOld is the age from which a self-test says little of now. The daemon
// makes one each minute.
const canaryOld = 3 * time.Minute

func (r running) checkCanary() Check {
	const name = "canary"
	if r.status.Kernel == nil {
		return ok(name, "not needed without programs")
	}
	c := r.status.Kernel.Canary
	age := r.now.Sub(c.At).Round(time.Second)
	switch {
	case c.At.IsZero():
		return warn(name, "ask again in a moment", "the daemon has not tried yet")
	case !c.OK:
		return fail(name, remedyOfCanary(c.Error), "%s ago: %s", age, c.Error)
	case age > canaryOld:
		return warn(name, "look into the daemon's log: its self-tests have stopped", "the last one was %s ago", age)
	}
	return ok(name, "%s ago a fresh process of the scope was led to the proxy", age)
}

// remedyOfCanary looks for the gate in what the daemon says.
func remedyOfCanary(text string) string {
	if strings.Contains(text, "did not see") {
		return "look for a cgroup program of others that comes first: the foreign programs above"
	}
	for gate, remedy := range gateRemedies {
		if strings.Contains(text, "gate "+gate) {
			return remedy
		}
	}
	return "look into the daemon's log"
}

// gateRemedies say what to do where connections that the policy names go
// untouched because a gate did not hold.
var gateRemedies = map[string]string{
	"device":      "write an exit with that interface and rebind: true",
	"source_port": "let the client choose no source port, since the proxy cannot have the same",
	"netns":       "let egressd run as root on the host: it must enter the namespaces of containers",
	"listener":    "look whether a firewall or another program takes the proxy's port",
	"heartbeat":   "give the daemon more processor time: its event loop stood still for a second",
	"backlog":     "give the daemon more processor time, or raise net.core.somaxconn: more connections came than it took",
	"full":        "raise the limit of open files: flows were not taken fast enough",
}

func (r running) checkGates() Check {
	const name = "gates"
	if r.status.Kernel == nil {
		return ok(name, "not needed without programs")
	}
	var findings, remedies []string
	for _, gate := range slices.Sorted(maps.Keys(gateRemedies)) {
		if n := r.status.Kernel.Untouched[gate]; n > 0 {
			findings = append(findings, fmt.Sprintf("%d by gate %s", n, gate))
			remedies = append(remedies, gateRemedies[gate])
		}
	}
	if findings != nil {
		return warn(name, strings.Join(remedies, "; "), "connections that the policy names went untouched: %s", strings.Join(findings, ", "))
	}
	return ok(name, "nothing that the policy names went untouched")
}

func (r running) checkListener() Check {
	const name = "listener"
	switch {
	case r.status.Kernel == nil:
		return ok(name, "not needed without programs")
	case errors.Is(r.listenErr, fs.ErrPermission):
		return unknown(name, r.listenErr.Error())
	case r.listenErr != nil:
		return fail(name, "look into the daemon's log", "%v", r.listenErr)
	case len(r.listeners) == 0:
		return fail(name, "restart the daemon", "the daemon listens at no port of all addresses, so nothing is led to it")
	}
	return ok(name, "the proxy listens at port %d", r.listeners[0])
}

func (r running) checkForeign() Check {
	const name = "foreign programs"
	switch {
	case errors.Is(r.presentEr, loader.ErrPrivileges):
		return unknown(name, "the kernel tells it to root only")
	case errors.Is(r.presentEr, fs.ErrNotExist):
		return warn(name, "start the service of that cgroup, or take it out of scope.cgroups", "%v", r.presentEr)
	case r.presentEr != nil:
		return unknown(name, r.presentEr.Error())
	}
	var foreign []string
	for _, p := range r.programs {
		if !p.Own {
			foreign = append(foreign, fmt.Sprintf("%s (id %d) at %s of %s", nameOf(p.Name), p.ID, p.Hook, p.Cgroup))
		}
	}
	if foreign != nil {
		return warn(name, "see that the canary is ok; if not, stop what attached them (bpftool cgroup tree tells)",
			"others may see, or set, other addresses: %s", strings.Join(foreign, ", "))
	}
	return ok(name, "none on the way")
}

// nameOf is the name of a program for people.
func nameOf(name string) string {
	if name == "" {
		return "one without a name"
	}
	return name
}

// fewFiles is the limit of open files below which a busy host runs out. Each
// connection takes two.
const fewFiles = 65536

func (r running) checkFiles() Check {
	const name = "open files"
	_, hard, found := openFiles(r.limits)
	switch {
	case errors.Is(r.limitsErr, fs.ErrPermission):
		return unknown(name, r.limitsErr.Error())
	case r.limitsErr != nil || !found:
		return warn(name, "mount /proc", "the limit cannot be read")
	case hard < fewFiles:
		whose := "the daemon"
		if r.status == nil {
			whose = "a daemon that is started from here"
		}
		return warn(name, "LimitNOFILE=1048576 in the unit, or ulimit -Hn 1048576 before the daemon is started",
			"%s may have %d: some %d connections at once", whose, hard, hard/2)
	}
	return ok(name, "%d at most", hard)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// listeners finds the ports at which a process listens by TCP at all addresses
// of its network namespace.
func listeners(pid int) ([]uint16, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil, fmt.Errorf("read open files of the daemon: %w", err)
	}
	own := make(map[string]bool)
	for _, e := range entries {
		// A file may be closed meanwhile.
		if target, err := os.Readlink(filepath.Join(dir, "fd", e.Name())); err == nil {
			if inode, is := strings.CutPrefix(target, "socket:["); is {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var found []uint16
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(dir + "/net/" + table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("read sockets of the daemon: %w", err)
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			if port, inode, ok := parseListener(lines.Text()); ok && own[inode] && !slices.Contains(found, port) {
				found = append(found, port)
			}
		}
	}
	return found, nil
}

// parseListener reads one line of /proc/net/tcp: the second field is the local
// address in hexadecimal, the fourth the state, 0A for one that listens, and
// the tenth the inode. ok is false unless the socket listens at all addresses.
func parseListener(text string) (port uint16, inode string, ok bool) {
	fields := strings.Fields(text)
	if len(fields) < 10 || fields[3] != "0A" {
		return 0, "", false
	}
	addr, hex, _ := strings.Cut(fields[1], ":")
	n, err := strconv.ParseUint(hex, 16, 16)
	if err != nil || addr == "" || strings.Trim(addr, "0") != "" {
		return 0, "", false
	}
	return uint16(n), fields[9], true
}
