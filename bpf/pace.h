/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Turns of connections: a SYN that has to wait gets the time at which it may
 * go, and fq, the qdisc of the device, keeps it until then. The client sees a
 * connect() that takes long.
 *
 * What is in a qdisc cannot be called back: a cooldown that begins later does
 * not hold it, nor does the end of the client take it away.
 */
#ifndef EGRESS_PACE_H
#define EGRESS_PACE_H

struct turn {
	__u64 at; /* CLOCK_MONOTONIC ns; 0: to be found when the exit shows */
	struct addr dest;
	__u32 set;
	__u32 name;
};

/* Of sockets by cookie. LRU: by the time that one is lost, its SYN has its
 * time already.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct turn);
} turns SEC(".maps");

/* Destinations that may leave by a device that is not paced: addresses of the
 * namespace itself, and what a route leads elsewhere.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u8);
} pace_outside SEC(".maps");

/* The devices that are paced, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} pace_devices SEC(".maps");

/* Whether the SYN to dest will pass by fq. device is that which the socket is
 * bound to, or 0.
 */
static __always_inline bool is_paced(const struct control *ctl, __u64 netns,
				     const struct addr *dest, __u32 device)
{
	struct prefix key = { .bits = 128, .addr = *dest };

	if (!READ_ONCE(ctl->pace_limit) || netns != ctl->pace_netns || addr_is_local(dest))
		return false;
	if (device)
		return bpf_map_lookup_elem(&pace_devices, &device) != NULL;
	return !bpf_map_lookup_elem(&pace_outside, &key);
}

#endif
