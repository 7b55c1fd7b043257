/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flow records and tokens: what the hook tells the proxy of a connection. */
#ifndef EGRESS_FLOWS_H
#define EGRESS_FLOWS_H

/* SO_MARK of the listeners ("egrD"): with it the hook knows that a listener
 * on the port is the daemon's.
 */
#define LISTENER_MARK 0x65677244

#define HEARTBEAT_MAX 1000000000ULL /* ns */

/* A network namespace in which the daemon listens. */
struct enrolment {
	__u32 slot; /* in the map backlogs */
	__u16 port; /* of the listener, host order */
	__u16 pad;
};

#define MAX_NETNS 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NETNS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct enrolment);
} enrolments SEC(".maps");

/* Mapped by the daemon. pending is changed by both sides, limit by Go only. */
struct backlog {
	__u64 pending; /* redirected and not yet taken */
	__u64 limit;
	__u64 pad[6]; /* one cache line for each */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_NETNS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backlog);
} backlogs SEC(".maps");

/* Set in flow_key.id beside a socket cookie, which is never that large. */
#define FLOW_BY_COOKIE (1ULL << 63)

struct flow_key {
	__u64 netns;
	__u64 id; /* the token in network order, or FLOW_BY_COOKIE | cookie */
};

struct flow {
	struct addr dest;
	struct addr source; /* zero = not bound */
	__u64 cookie;
	__u64 cgroup;
	__u64 at; /* CLOCK_MONOTONIC ns */
	__u32 ifindex;
	__u32 mark;
	__u32 uid;
	__u32 tgid;
	__u32 exit;
	__u32 slot; /* of the backlog that counts it */
	__u16 port; /* host order */
	__u16 pad[3];
	char comm[TASK_COMM_LEN];
};

/*
 * Not LRU: losing a record would lead a connection to the wrong place, while a
 * full map only lets it go untouched. Whoever deletes a record takes one off
 * the pending count of its slot.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct negative_key {
	struct addr dest;
	__u64 netns;
	__u16 port; /* host order */
	__u16 pad[3];
};

/* Destinations that go native until the time of the value, so that connect()
 * gives the true error. LRU: an entry lost early costs one redirect.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct negative_key);
	__type(value, __u64);
} negatives SEC(".maps");

#define MAX_TOKEN_TRIES 8

/* Stores the record under a free token, which it returns, or 0 if there is no
 * room.
 */
static __always_inline __be32 flow_put(struct control *ctl, __u64 netns, const struct flow *f)
{
	struct flow_key key = { .netns = netns };

	for (int i = 0; i < MAX_TOKEN_TRIES; i++) {
		__u32 n = __sync_fetch_and_add(&ctl->next_token, 1);

		key.id = bpf_htonl(TOKEN_BASE | (n & 0xffff));
		if (bpf_map_update_elem(&flows, &key, f, BPF_NOEXIST) == 0)
			return key.id;
	}
	return 0;
}

/* Stores the record under the cookie of the client's socket. There is only one
 * ::1, so the daemon asks the kernel whose connection it accepted.
 */
static __always_inline bool flow_put_cookie(__u64 netns, const struct flow *f)
{
	struct flow_key key = { .netns = netns, .id = FLOW_BY_COOKIE | f->cookie };

	return bpf_map_update_elem(&flows, &key, f, BPF_NOEXIST) == 0;
}

/* Counts one more connection as pending, unless limit are already. */
static __always_inline bool backlog_enter(struct backlog *b)
{
	if (__sync_fetch_and_add(&b->pending, 1) < *(volatile __u64 *)&b->limit)
		return true;
	__sync_fetch_and_add(&b->pending, -1);
	return false;
}

/* Whether the daemon listens at port in the namespace of the socket. */
static __always_inline bool listener_alive(struct bpf_sock_addr *ctx, __u16 port, bool v6)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	bool alive;

	if (v6) {
		tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.dport = bpf_htons(port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv4.daddr = bpf_htonl(TOKEN_BASE);
		tuple.ipv4.dport = bpf_htons(port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return false;
	alive = sk->state == BPF_TCP_LISTEN && sk->mark == LISTENER_MARK;
	bpf_sk_release(sk);
	return alive;
}

#endif
