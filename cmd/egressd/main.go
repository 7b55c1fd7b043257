// SPDX-License-Identifier: Apache-2.0

// Command egressd holds the outgoing requests of a host's processes to
// budgets, without a change to any of them.
//
// This package is the only one that knows all others: it wires them together
// and gives them a command line. Errors come out in one place, report, one
// line each.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), hostEnv(), os.Args[1:]))
}
