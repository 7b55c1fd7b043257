// SPDX-License-Identifier: Apache-2.0

// Package demo shows, with real processes and the real kernel programs, what
// unchanged workers do to an origin with a limit, without egressd and with it.
// All numbers are the origin's own record of what it received, and when; none
// is computed from what should have happened.
package demo
