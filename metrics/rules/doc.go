// SPDX-License-Identifier: Apache-2.0

// Package rules has egressd.rules.yml, the recording and alert rules that are
// shipped for Prometheus, and stories in time that they are tested by. There is
// no code in it: the file is for a Prometheus to read.
package rules
