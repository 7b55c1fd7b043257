/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a device's program does with the SYN of a connection. */
#ifndef EGRESS_SYN_H
#define EGRESS_SYN_H

#define ETH_LEN 14

/* Lengths of IPv4 and IPv6 headers (RFC 791, 8200). */
#define IP4_LEN 20
#define IP6_LEN 40

#define TCP_FLAG_RST_ACK 0x14

struct eth_addrs {
	__u8 to[6];
	__u8 from[6];
};

/* RFC 9293 section 3.1, up to the checksum */
struct tcp_head {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
};

/*
 * The answer to a SYN that may not leave: the reset that a host would send
 * where nobody listens, so that connect() fails at once. The SYN itself is
 * turned around: addresses and ports change places, the number that it
 * acknowledges is the SYN's own. The stack takes it as the kernel's own work,
 * whose checksum is not looked at.
 *
 * Returns what the program returns: where the headers are not as plain as
 * those of a SYN are, the packet is dropped, and sent again.
 */
static __always_inline int syn_reset(struct __sk_buff *skb)
{
	bool v4 = skb->protocol == bpf_htons(0x0800);
	__u32 len = v4 ? IP4_LEN : IP6_LEN, ip;
	struct tcp_head syn, reset = {};
	__u8 head[IP6_LEN] = {};

	if (bpf_skb_load_bytes_relative(skb, 0, head, len, BPF_HDR_START_NET))
		return TCX_DROP;
	if (v4) {
		if (head[0] != 0x45 || head[9] != IPPROTO_TCP)
			return TCX_DROP;
		ip = skb->len - ((__u32)head[2] << 8 | head[3]);
	} else {
		if (head[6] != IPPROTO_TCP)
			return TCX_DROP;
		ip = skb->len - IP6_LEN - ((__u32)head[4] << 8 | head[5]);
	}
	/* With an Ethernet header or with none. */
	if (ip == ETH_LEN) {
		struct eth_addrs out, back;

		if (bpf_skb_load_bytes(skb, 0, &out, sizeof(out)))
			return TCX_DROP;
		__builtin_memcpy(back.to, out.from, sizeof(back.to));
		__builtin_memcpy(back.from, out.to, sizeof(back.from));
		bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0);
	} else if (ip != 0) {
		return TCX_DROP;
	}
	if (bpf_skb_load_bytes(skb, ip + len, &syn, sizeof(syn)))
		return TCX_DROP;
	if (v4) {
		bpf_skb_store_bytes(skb, ip + 12, head + 16, 4, 0);
		bpf_skb_store_bytes(skb, ip + 16, head + 12, 4, 0);
	} else {
		bpf_skb_store_bytes(skb, ip + 8, head + 24, 16, 0);
		bpf_skb_store_bytes(skb, ip + 24, head + 8, 16, 0);
	}
	reset.source = syn.dest;
	reset.dest = syn.source;
	reset.ack = bpf_htonl(bpf_ntohl(syn.seq) + 1);
	reset.offset = syn.offset;
	reset.flags = TCP_FLAG_RST_ACK;
	bpf_skb_store_bytes(skb, ip + len, &reset, sizeof(reset), 0);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* The exit, now that the connection has its source address and device. */
static __always_inline __u32 syn_exit(const struct control *ctl, struct __sk_buff *skb,
				      struct bpf_sock *sk)
{
	struct exit_traits t = {
		.netns = ctl->pace_netns,
		.ifindex = skb->ifindex,
		.mark = skb->mark,
	};

	if (ctl->exits & EXITS_UID)
		t.uid = bpf_get_socket_uid(skb);
	if (sk->family != AF_INET6 || skb->protocol == bpf_htons(0x0800)) {
		addr_from_v4(&t.source, sk->src_ip4);
	} else {
		t.source.words[0] = sk->src_ip6[0];
		t.source.words[1] = sk->src_ip6[1];
		t.source.words[2] = sk->src_ip6[2];
		t.source.words[3] = sk->src_ip6[3];
	}
	return exit_of(ctl, &t);
}

#define TURN_NONE (~0ULL)     /* there will be none: refused */
#define TURN_DROPPED (~1ULL)  /* the same, and the client is not told */

/* The turn of a connection of which connect() could not tell the exit. */
static __always_inline __u64 syn_turn(struct control *ctl, struct __sk_buff *skb,
				      struct bpf_sock *sk, const struct turn *t)
{
	struct plane_call p = {
		.dest = t->dest,
		.name = t->name,
		.exit = syn_exit(ctl, skb, sk),
		.hold = HOLD_PACED,
	};
	struct plane_set *set = bpf_map_lookup_elem(&plane_sets, &t->set);
	__u64 now = bpf_ktime_get_ns();

	if (!set)
		return now;
	if (set->flags & SET_PROXY) {
		if (daemon_alive(ctl, now))
			p.hold |= HOLD_PROXY;
		switch (plane_guard(set, &p)) {
		case ADMIT_HELD:
			return p.turn;
		case ADMIT_REFUSED:
			return TURN_NONE;
		case ADMIT_DROPPED:
			return TURN_DROPPED;
		}
		return now;
	}
	/* The proxy can no longer take it. */
	switch (plane_admit(set, &p)) {
	case ADMIT_HELD:
		return p.turn;
	case ADMIT_REFUSED:
	case ADMIT_ASK:
		return TURN_NONE;
	case ADMIT_DROPPED:
		return TURN_DROPPED;
	}
	return now;
}

/* Corrects how the connection is counted, which connect() said was granted, or
 * untouched.
 */
static __always_inline void syn_via(const struct control *ctl, struct bpf_sock *sk, __u64 cookie,
				    __u64 turn)
{
	__u64 id = sock_id(ctl, sk);
	struct recent *r = recent_slot(id);
	struct sock_info *info;
	__u32 via;

	if (turn >= TURN_DROPPED)
		via = VIA_REFUSED;
	else if (turn > bpf_ktime_get_ns())
		via = VIA_HELD;
	else
		return;
	if (r && READ_ONCE(r->sock) == id) {
		r->via = via;
		return;
	}
	info = bpf_map_lookup_elem(&untouched, &cookie);
	if (info)
		info->via = via;
}

/*
 * Decides one packet on its way out of a device. Whatever is no SYN costs a
 * look at its socket's state. A SYN that is sent again has the turn that it
 * had.
 */
static __always_inline int on_syn(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct control *ctl;
	struct turn *t;
	__u64 cookie;

	if (!sk || sk->state != BPF_TCP_SYN_SENT)
		return TCX_NEXT;
	ctl = control_get();
	sk = bpf_sk_fullsock(sk);
	if (!ctl || !sk || sk->protocol != IPPROTO_TCP)
		return TCX_NEXT;
	cookie = bpf_get_socket_cookie(skb);
	t = bpf_map_lookup_elem(&turns, &cookie);
	if (!t)
		return TCX_NEXT;
	if (t->at == 0) {
		t->at = syn_turn(ctl, skb, sk, t);
		syn_via(ctl, sk, cookie, t->at);
	}
	if (t->at == TURN_NONE)
		return syn_reset(skb);
	if (t->at == TURN_DROPPED)
		return TCX_DROP;
	if (t->at > bpf_ktime_get_ns())
		bpf_skb_set_tstamp(skb, t->at, BPF_SKB_TSTAMP_DELIVERY_MONO);
	return TCX_NEXT;
}

#endif
