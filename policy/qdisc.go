// SPDX-License-Identifier: Apache-2.0

package policy

// QdiscMode says whether the queueing disciplines of network devices may be
// changed.
type QdiscMode uint8

// Modes of qdiscs.
const (
	QdiscNone QdiscMode = iota // they stay as they are
	// QdiscFQ puts fq where the kernel chose the qdisc by itself, so that the
	// kernel can delay connections; until the daemon stops.
	QdiscFQ
)
