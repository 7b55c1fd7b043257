/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whose answers are not looked at. */
#ifndef DNS_SCOPE_H
#define DNS_SCOPE_H

/* Ids of cgroups whose sockets, and those of the cgroups below, are let be. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} excluded SEC(".maps");

#define MAX_SCOPE_LEVELS 16

static __always_inline bool socket_is_excluded(struct __sk_buff *ctx)
{
	for (int level = 0; level < MAX_SCOPE_LEVELS; level++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(ctx, level);

		if (!id)
			return false;
		if (bpf_map_lookup_elem(&excluded, &id))
			return true;
	}
	return false;
}

#endif
