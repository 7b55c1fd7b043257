/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which exit a socket has. */
#ifndef EGRESS_EXITS_H
#define EGRESS_EXITS_H

#define MAX_EXITS 4096

/* An exit's id keeps its name for the daemon's life; its rank is the place in
 * the policy file, and the lowest wins.
 */
struct exit_rule {
	__u32 id;
	__u32 rank;
};

struct exit_device {
	__u64 netns; /* cookie: an ifindex means nothing without */
	__u32 ifindex;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_EXITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct exit_rule);
} exit_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_EXITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct exit_device);
	__type(value, struct exit_rule);
} exit_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_EXITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct exit_rule);
} exit_marks SEC(".maps");

static __always_inline void exit_take_lower(struct exit_rule *best, const struct exit_rule *rule)
{
	if (rule && rule->rank < best->rank)
		*best = *rule;
}

/* The id of the first exit in file order that fits, or 0 for direct. */
static __always_inline __u32 exit_of(const struct control *ctl, const struct addr *source,
				     __u64 netns, __u32 ifindex, __u32 mark)
{
	struct exit_rule best = { .id = 0, .rank = ~0U };

	if (ctl->exits == 0)
		return 0;
	if (!addr_is_zero(source))
		exit_take_lower(&best, bpf_map_lookup_elem(&exit_sources, source));
	if (ifindex) {
		struct exit_device device = { .netns = netns, .ifindex = ifindex };

		exit_take_lower(&best, bpf_map_lookup_elem(&exit_devices, &device));
	}
	if (mark)
		exit_take_lower(&best, bpf_map_lookup_elem(&exit_marks, &mark));
	return best.id;
}

#endif
