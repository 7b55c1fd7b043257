/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of what became of things. Who includes this has enum tally, up to
 * TALLY_MAX.
 */
#ifndef TALLY_H
#define TALLY_H

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TALLY_MAX);
	__type(key, __u32);
	__type(value, __u64);
} tallies SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&tallies, &what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

#endif
