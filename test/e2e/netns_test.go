// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
)

// netnsPrefix begins the names of this run's network namespaces.
func netnsPrefix() string { return fmt.Sprintf("e2e-%d-", os.Getpid()) }
