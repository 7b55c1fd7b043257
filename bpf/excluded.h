/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The cgroups that policy lets be, with everything below them. */
#ifndef EXCLUDED_H
#define EXCLUDED_H

/* By id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} excluded SEC(".maps");

#define MAX_CGROUP_LEVELS 16

#endif
