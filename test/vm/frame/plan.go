// SPDX-License-Identifier: Apache-2.0

package frame

import "time"

// PlanPath is where init finds its Plan, as JSON.
const PlanPath = "/plan.json"

// Plan is what a machine does from boot to power-off.
type Plan struct {
	Modules []string // paths of kernel modules, in the order of loading
	Runs    []Run
}

// Run is a program that runs alone, to its end.
type Run struct {
	Name    string
	Path    string
	Args    []string // without the program's name
	Env     []string // beside what every run gets
	Dir     string
	Timeout time.Duration // until it is killed, with all that it started
}
