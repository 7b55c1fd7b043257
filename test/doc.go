// SPDX-License-Identifier: Apache-2.0

// Package test holds the rules of the repository that no compiler knows: which
// package may import which, what every file begins with, what documents may
// claim. They are tests, so that `make test` tells.
package test
