/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What policy names in the kernel's terms: ports anywhere, ports of prefixes. */
#ifndef EGRESS_NAMED_H
#define EGRESS_NAMED_H

enum {
	NAMED_LOCAL = 1,       /* loopback and link-local addresses, too */
	NAMED_FAIL_CLOSED = 2, /* refuse rather than let go untouched */
	NAMED = 4,             /* set in all that names, and in every answer that does */
	NAMED_ASK = 8,         /* budgets name hosts here: see targets */
};

struct named {
	__u32 flags; /* 0 = not named */
	__u32 set;   /* of the kernel plane: id, or 0 */
};

/* Ports named at any address, in host order. An array, though it is almost
 * empty: every connect() looks here.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct named);
} ports SEC(".maps");

struct prefix {
	__u32 bits;
	struct addr addr;
};

/*
 * Prefixes by their longest match. The value is an id under which
 * prefix_ports has the ports: those of the prefix and, since a longer prefix
 * hides the shorter ones, also those of all prefixes around it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} prefixes SEC(".maps");

struct prefix_port {
	__u32 prefix;
	__u16 port; /* host order */
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_port);
	__type(value, struct named);
} prefix_ports SEC(".maps");

struct target_key {
	struct addr addr;
	__u16 port; /* host order */
	__u16 pad;
};

struct target {
	__u32 set;
	__u32 name; /* id of the host's name */
};

/* What holds for addresses whose names are known. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct target_key);
	__type(value, struct target);
} targets SEC(".maps");

/*
 * Where prefixes and endpoints are, roughly: one bit for each 65536th part of
 * the address space, the first half of the words for IPv4, by the first 16 bits
 * of the address, the rest for IPv6, by the first 32 folded. Where no bit is
 * set, none is.
 */
#define AREA_WORDS 1024 /* of each half */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * AREA_WORDS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} areas SEC(".maps");

/* Whether a prefix or an endpoint may be where the address is. */
static __always_inline bool in_known_area(const struct addr *a)
{
	bool v4 = addr_is_v4(a);
	__u32 first = bpf_ntohl(v4 ? a->words[3] : a->words[0]);
	__u32 area = v4 ? first >> 16 : (first ^ first >> 16) & 0xffff;
	__u32 i = (v4 ? 0 : AREA_WORDS) + area / 64;
	__u64 *word = bpf_map_lookup_elem(&areas, &i);

	return !word || *word >> area % 64 & 1;
}

/* Whether this is the destination by which the daemon tests the hook. It is
 * named whatever policy says, and not counted.
 */
static __always_inline bool is_canary(const struct control *ctl, const struct addr *dest,
				      __u16 port)
{
	return ctl->canary_port && ctl->canary_port == port && addr_equal(&ctl->canary, dest);
}

/* NAMED and the flags of all that name the destination, or 0; and the set that
 * holds for it, of the most special that has one.
 */
static __always_inline __u32 destination_named(const struct control *ctl, const struct addr *dest,
					       __u16 port, struct target *target)
{
	__u32 named = 0, number = port;
	struct named *have = bpf_map_lookup_elem(&ports, &number);

	if (have && have->flags && (have->flags & NAMED_LOCAL || !addr_is_local(dest))) {
		named = have->flags;
		target->set = have->set;
	}
	if (ctl->prefixes) {
		struct prefix key = { .bits = 128, .addr = *dest };
		__u32 *id = bpf_map_lookup_elem(&prefixes, &key);

		if (id) {
			struct prefix_port pp = { .prefix = *id, .port = port };

			have = bpf_map_lookup_elem(&prefix_ports, &pp);
			if (have) {
				named |= NAMED | have->flags;
				target->set = have->set;
			}
		}
	}
	if (named & NAMED_ASK) {
		struct target_key key = { .addr = *dest, .port = port };
		struct target *known = bpf_map_lookup_elem(&targets, &key);

		if (known)
			*target = *known;
	}
	if (is_canary(ctl, dest, port))
		named |= NAMED;
	return named;
}

/* In-kernel clients of these ports kept the rewritten peer address before
 * 6.6 and lost their mounts.
 */
static __always_inline bool port_is_storage(__u16 port)
{
	return port == 111 || port == 2049 || port == 445 || port == 3260 || port == 6789;
}

#endif
