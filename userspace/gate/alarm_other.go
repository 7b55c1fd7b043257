// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gate

import "github.com/egressd/egressd/policy/ledger"

// Precise makes the most precise Alarm that the system has.
func Precise(now func() ledger.Time, fire func()) (Alarm, error) { return Timer(now, fire) }
