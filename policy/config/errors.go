// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/egressd/egressd/policy/config/strict"

// Error is one mistake in a policy file.
type Error = strict.Error

// Errors are all mistakes of a policy file in the order of their lines, never
// none.
type Errors = strict.Errors
