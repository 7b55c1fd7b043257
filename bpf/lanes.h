/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which lane owns which cell. Only the daemon reads and writes this map; it is
 * a map because it has to outlive the daemon together with the ledger.
 */
#ifndef EGRESS_LANES_H
#define EGRESS_LANES_H

struct lane_hash {
	__u8 bytes[16];
};

#define MAX_LANE_NAME 600

struct lane {
	__u32 cell;
	__u16 budget_len;
	__u16 destination_len;
	__u16 exit_len;
	__u8 names[MAX_LANE_NAME]; /* budget, destination, exit, one after the other */
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lane_hash);
	__type(value, struct lane);
} lanes SEC(".maps");

#endif
