// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/egressd/egressd/policy"

// qdisc reads whether fq may be installed.
func (v value) qdisc(q *policy.QdiscMode) {
	if s, ok := v.word("none", "fq"); ok && s == "fq" {
		*q = policy.QdiscFQ
	}
}

// describeQdisc says what is done to the qdiscs of this host; "" for nothing.
func describeQdisc(q policy.QdiscMode) string {
	if q != policy.QdiscFQ {
		return ""
	}
	return "qdisc: fq is put on devices that lead out, where the kernel chose the qdisc, until the daemon stops"
}
