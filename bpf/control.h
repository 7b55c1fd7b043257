/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The words by which the daemon steers the programs. The daemon maps this map
 * and stores without a system call; every word is read and written whole.
 */
#ifndef EGRESS_CONTROL_H
#define EGRESS_CONTROL_H

#include "excluded.h"

struct control {
	/* Written by the daemon at every turn of its accept loop. What follows is
	 * read by every connect(), and shall not share the line.
	 */
	__u64 beat; /* CLOCK_MONOTONIC ns of the last turn */
	__u64 pad0[7];

	/* Written by the daemon, seldom. */
	__u64 own_cgroup; /* the daemon's own cgroup, 0 if it shares one */
	__u32 own_tgid;   /* of the daemon, in the initial pid namespace */
	__u32 excluded;   /* entries of the map excluded */
	__u32 prefixes;   /* entries of the map prefixes */
	__u32 exits;      /* EXITS_*: which exit maps have entries */
	struct addr canary;
	__u32 canary_port; /* 0 = no canary under way */
	__u32 endpoints;   /* entries of the map endpoints */
	__u32 quic_refuse; /* whether UDP to what policy names is refused */
	__u32 pad1;
	__u64 pad2;

	/* Written by the programs, in a cache line of their own. */
	__u32 canary_gate; /* 1 + gate of the last connect() to the canary */
	__u32 next_token;
	__u64 dropped; /* counts for destinations that found no room */
	__u64 plane_made; /* lanes that the programs made */
	__u32 reader;     /* thread that reads account_open; the daemon puts 0 after it */
	__u32 pad3;
	__u64 pad4[4];

	/* Written by the daemon, seldom. */
	__u64 pace_netns; /* cookie of the namespace whose devices are paced */
	__u64 pace_limit; /* the longest time that a device keeps a packet, ns; 0: none does */
	__u64 pad5[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

static __always_inline struct control *control_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

/* Whether the task is one of the daemon's processes. */
static __always_inline bool task_is_own(const struct control *ctl, const struct task_struct *task)
{
	if ((__u32)BPF_CORE_READ(task, tgid) == ctl->own_tgid)
		return true;
	return ctl->own_cgroup && BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id) == ctl->own_cgroup;
}

/* Whether the running task is. */
static __always_inline bool current_is_own(const struct control *ctl)
{
	if (bpf_get_current_pid_tgid() >> 32 == ctl->own_tgid)
		return true;
	return ctl->own_cgroup && bpf_get_current_cgroup_id() == ctl->own_cgroup;
}

/* Whether the running task is the one that reads account_open. */
static __always_inline bool current_is_reader(const struct control *ctl)
{
	return (__u32)bpf_get_current_pid_tgid() == READ_ONCE(ctl->reader);
}

/* Whether the running task's cgroup, or one above it, is excluded. */
static __always_inline bool task_is_excluded(void)
{
	for (int level = 0; level < MAX_CGROUP_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (id == 0)
			return false;
		if (bpf_map_lookup_elem(&excluded, &id))
			return true;
	}
	return false;
}

#endif
