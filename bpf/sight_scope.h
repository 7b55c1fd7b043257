/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whose calls are looked at, and what was counted. */
#ifndef SIGHT_SCOPE_H
#define SIGHT_SCOPE_H

/* Mapped by the daemon. */
struct control {
	__u32 levels;   /* bit n: a cgroup of the map scope lies n levels below the root */
	__u32 own_tgid; /* of the daemon, in the initial pid namespace */
	__u32 asleep;   /* set by the daemon when it wants to be woken; cleared by who wakes it */
	__u32 pad;
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

enum {
	SCOPE_SEEN = 1,
	SCOPE_EXCLUDED = 2, /* with everything below, whatever else holds there */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} scope SEC(".maps");

#define MAX_SCOPE_LEVELS 16

/* Whether the running task may be looked at: the first question of a probe. */
static __always_inline bool in_scope(void)
{
	struct control *ctl = control_get();
	bool seen = false;

	if (!ctl || bpf_get_current_pid_tgid() >> 32 == ctl->own_tgid)
		return false;
	for (int level = 0; level < MAX_SCOPE_LEVELS; level++) {
		__u8 *how;
		__u64 id;

		if (!(ctl->levels >> level & 1))
			continue;
		id = bpf_get_current_ancestor_cgroup_id(level);
		if (!id)
			break;
		how = bpf_map_lookup_elem(&scope, &id);
		if (!how)
			continue;
		if (*how == SCOPE_EXCLUDED)
			return false;
		seen = true;
	}
	return seen;
}

enum tally {
	TALLY_EVENTS, /* sent to the daemon */
	TALLY_LOST,   /* the ring was full */
	TALLY_MISSED, /* calls for whose notes there was no room */
	TALLY_CROWDED, /* connections for which there was no room */
	TALLY_UNREAD, /* memory of the process that could not be read */
	TALLY_CLOSED,
	TALLY_SOURCES, /* and the next ones: events of data by enum source */
	TALLY_MAX = TALLY_SOURCES + 5,
};

#include "tally.h"

#endif
