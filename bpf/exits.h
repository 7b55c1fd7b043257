/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which exit a socket has. */
#ifndef EGRESS_EXITS_H
#define EGRESS_EXITS_H

#define MAX_EXITS 4096

/* Bits of control.exits. The first four spare the search of empty maps. */
enum {
	EXITS_SOURCE = 1,
	EXITS_DEVICE = 2,
	EXITS_MARK = 4,
	EXITS_UID = 8,
	EXITS_REBIND = 16, /* a rule asks for it, or one did: see struct sock_info */
};

/* By what an established socket shows, and an unbound one at connect() does not. */
#define EXITS_LATE (EXITS_SOURCE | EXITS_DEVICE)

/* An exit's id keeps its name for the daemon's life; its rank is the place in
 * the policy file, and the lowest wins.
 */
struct exit_rule {
	__u32 id;
	__u32 rank;
	__u32 rebind; /* of a device: sockets bound to it are redirected, too */
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072); /* of which the loader uses half: see endpoints */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct exit_rule);
} exit_uids SEC(".maps");

struct endpoint {
	struct addr addr;
	__u16 port; /* host order */
	__u16 pad;
};

/* Forward proxies, with the id of the exit behind each. Twice as many as the
 * loader takes, so that one set can follow another without a gap.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint);
	__type(value, __u32);
} endpoints SEC(".maps");

/* By what a socket's exit is told. */
struct exit_traits {
	struct addr source; /* zero = not known */
	__u64 netns;
	__u32 ifindex; /* 0 = not known */
	__u32 mark;
	__u32 uid; /* the socket's owner */
	__u32 pad;
};

static __always_inline void exit_take_lower(struct exit_rule *best, const struct exit_rule *rule)
{
	if (rule && rule->rank < best->rank)
		*best = *rule;
}

static __always_inline struct exit_rule *exit_of_device(const struct exit_traits *t)
{
	struct exit_device device = { .netns = t->netns, .ifindex = t->ifindex };

	return bpf_map_lookup_elem(&exit_devices, &device);
}

/* The id of the first exit in file order that fits, or 0 for direct. */
static __always_inline __u32 exit_of(const struct control *ctl, const struct exit_traits *t)
{
	struct exit_rule best = { .id = 0, .rank = ~0U };
	__u32 exits = ctl->exits;

	if (exits & EXITS_SOURCE && !addr_is_zero(&t->source))
		exit_take_lower(&best, bpf_map_lookup_elem(&exit_sources, &t->source));
	if (exits & EXITS_DEVICE && t->ifindex)
		exit_take_lower(&best, exit_of_device(t));
	if (exits & EXITS_MARK && t->mark)
		exit_take_lower(&best, bpf_map_lookup_elem(&exit_marks, &t->mark));
	if (exits & EXITS_UID)
		exit_take_lower(&best, bpf_map_lookup_elem(&exit_uids, &t->uid));
	return best.id;
}

/* The id of the exit behind the forward proxy at this address, or 0. What goes
 * to a proxy has that proxy's exit, whatever else fits.
 */
static __always_inline __u32 exit_of_endpoint(const struct control *ctl, const struct addr *dest,
					      __u16 port)
{
	struct endpoint key = { .addr = *dest, .port = port };
	__u32 *id;

	if (ctl->endpoints == 0)
		return 0;
	id = bpf_map_lookup_elem(&endpoints, &key);
	return id ? *id : 0;
}

/* The exit of an established socket: by the source address that it has, and by
 * the device of its route. The kernel drops a route that changed until the
 * next segment is sent; then the device is not known.
 */
static __always_inline __u32 exit_of_established(const struct control *ctl, const struct sock *sk)
{
	struct exit_traits t = {
		.netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie),
		.mark = BPF_CORE_READ(sk, sk_mark),
		.uid = BPF_CORE_READ(sk, sk_uid.val),
	};
	struct dst_entry *route = BPF_CORE_READ(sk, sk_dst_cache);

	if (route)
		t.ifindex = BPF_CORE_READ(route, dev, ifindex);
	if (BPF_CORE_READ(sk, __sk_common.skc_family) != AF_INET6)
		addr_from_v4(&t.source, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr));
	else if (bpf_core_field_exists(sk->__sk_common.skc_v6_rcv_saddr))
		BPF_CORE_READ_INTO(&t.source, sk, __sk_common.skc_v6_rcv_saddr);
	return exit_of(ctl, &t);
}

#endif
