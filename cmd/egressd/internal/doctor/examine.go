// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

// Config says what to look at.
type Config struct {
	// Policy is the policy file, read; PolicyErr is why it could not be, and
	// Policy then a default. File is its name.
	Policy    *policy.Policy
	PolicyErr error
	File      string
	FileNamed bool   // somebody asked for that very file
	PinDir    string // where the daemon pins its ledger
	Daemon    Daemon
	Sources   Sources
	Probes    Probes
	// Sight is how the inside of a flow's TLS is seen, "" if it is no TLS.
	Sight func(admin.Flow) string
}

// Examine looks at everything. It takes as long as the kernel needs to verify
// the programs, and a look at each process of the scope.
func Examine(ctx context.Context, cfg Config) *Report {
	m := examine(cfg.PinDir)
	d := ask(ctx, cfg.Daemon, m.cgroupRoot, cfg.Policy.Scope.Cgroups)
	report := &Report{Checks: m.checks(), Processes: []Process{}}
	report.Checks = append(report.Checks, checkFile(cfg), checkProbes(cfg.Policy, cfg.Probes, m.privileges == nil))
	report.Checks = append(report.Checks, lookAtPacing(d.pid(), m, os.DirFS("/")).check(cfg.Policy))
	report.Checks = append(report.Checks, d.checks()...)

	flows, flowsErr := sights(ctx, cfg, d.status != nil)
	own := map[int]bool{os.Getpid(): true}
	if d.status != nil {
		own[d.status.PID] = true
	}
	pids := make(map[int]string)
	var err error
	if m.cgroupErr == nil {
		pids, err = members(m.cgroupRoot, cfg.Policy.Scope)
	}
	noProbes := ""
	if m.sysctls[panicOnWarn] == "1" {
		noProbes = "kernel.panic_on_warn is on"
	}
	list, unseen := processes(ctx, pids, flows, own, cfg.Sources, rulesOf(cfg.Policy, noProbes))
	if err := errors.Join(err, flowsErr); err != nil {
		report.Checks = append(report.Checks, unknown("processes", err.Error()))
	}
	report.Processes = append(report.Processes, list...)
	report.Unseen = unseen
	report.OK = !report.Failed()
	return report
}

// checkFile says whether a daemon would start with the policy file.
func checkFile(cfg Config) Check {
	const name = "policy file"
	const missing = "write one, or name another with --config"
	switch err := cfg.PolicyErr; {
	case err == nil:
		return ok(name, "%s can be read", cfg.File)
	case errors.Is(err, fs.ErrNotExist) && cfg.FileNamed:
		return fail(name, missing, "no file %s", cfg.File)
	case errors.Is(err, fs.ErrNotExist):
		return warn(name, missing, "no file %s", cfg.File)
	case errors.Is(err, fs.ErrPermission):
		return unknown(name, err.Error())
	default:
		return fail(name, "mend it; egressd check tells all that is wrong with it", "%v", err)
	}
}

// sights counts the TLS connections of each process by how they are seen.
func sights(ctx context.Context, cfg Config, running bool) (map[int]map[string]int, error) {
	found := make(map[int]map[string]int)
	if !running || cfg.Sight == nil {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	flows, err := cfg.Daemon.Flows(ctx)
	if err != nil {
		return found, err
	}
	for _, f := range flows {
		sight := cfg.Sight(f)
		if sight == "" || sight == policy.SightNone.String() {
			continue
		}
		if found[int(f.PID)] == nil {
			found[int(f.PID)] = make(map[string]int)
		}
		found[int(f.PID)][sight]++
	}
	return found, nil
}
