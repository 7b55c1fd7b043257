/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whose answers are not looked at. */
#ifndef DNS_SCOPE_H
#define DNS_SCOPE_H

#include "excluded.h"

static __always_inline bool socket_is_excluded(struct __sk_buff *ctx)
{
	for (int level = 0; level < MAX_CGROUP_LEVELS; level++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(ctx, level);

		if (!id)
			return false;
		if (bpf_map_lookup_elem(&excluded, &id))
			return true;
	}
	return false;
}

#endif
