/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * UDP to what policy names. That is QUIC, which no proxy of ours can pace: it
 * is counted, or refused before its first datagram, so that the client falls
 * back to TCP at once.
 *
 * Two calls begin it: connect(), whose later sends no hook sees, and sendmsg()
 * with an address, which passes the hook with every datagram.
 */
#ifndef EGRESS_UDP_H
#define EGRESS_UDP_H

struct udp_dest {
	__u64 untouched;
	__u64 refused;
};

/* Counts per destination and exit. What finds no room is counted as dropped,
 * and for the zero address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct dest_key);
	__type(value, struct udp_dest);
} udp_dests SEC(".maps");

struct udp_peer {
	__u64 cookie; /* of the socket */
	struct addr addr;
	__u16 port; /* host order */
	__u16 pad[3];
};

enum {
	UDP_UNTOUCHED = 1,
	UDP_REFUSED = 2,
};

/* With whom a socket was counted, and as what: once for each, not with each
 * datagram. LRU: one that is lost is counted once more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct udp_peer);
	__type(value, __u32);
} udp_peers SEC(".maps");

/* QUIC is never spoken to these ports: 53 is for names, and 80 for HTTP without
 * TLS, which HTTP/3 does not have (RFC 9114, section 3.1). Resolvers connect
 * to the latter to learn a source address.
 */
static __always_inline bool port_is_never_quic(__u16 port)
{
	return port == 53 || port == 80;
}

static __always_inline struct sock *sock_of(struct bpf_sock_addr *ctx)
{
	return BPF_CORE_READ((struct bpf_sock_addr_kern *)ctx, sk);
}

/* Whether connect() on this socket may begin QUIC. Resolvers sort addresses by
 * connecting a UDP socket to each, with the port that was asked for, and send
 * nothing; refused, they would take the address for out of reach. They leave
 * the socket blocking, as getaddrinfo() of glibc does, and those who speak QUIC
 * do not.
 */
static __always_inline bool sock_is_nonblocking(struct bpf_sock_addr *ctx)
{
	return BPF_CORE_READ(sock_of(ctx), sk_socket, file, f_flags) & O_NONBLOCK;
}

/* The exit as far as it is known now: an unbound socket has no source address
 * and no device yet.
 */
static __always_inline __u32 udp_exit(struct bpf_sock_addr *ctx, const struct control *ctl,
				      const struct call *c)
{
	struct exit_traits t = {
		.source = c->source,
		.netns = c->netns,
		.ifindex = c->device, /* the socket's own binding */
	};

	if (ctl->exits == 0)
		return 0;
	t.mark = BPF_CORE_READ(sock_of(ctx), sk_mark);
	t.uid = BPF_CORE_READ(sock_of(ctx), sk_uid.val);
	return exit_of(ctl, &t);
}

/* Whether the daemon would pace the TCP connection that comes instead. */
static __always_inline bool udp_has_proxy(const struct control *ctl, const struct call *c)
{
	if (!bpf_map_lookup_elem(&enrolments, &c->netns))
		return false;
	return daemon_alive(ctl, bpf_ktime_get_ns());
}

static __always_inline void udp_count(struct control *ctl, const struct call *c, bool refused)
{
	struct udp_peer peer = { .cookie = c->cookie, .addr = c->dest, .port = c->port };
	struct dest_key key = {
		.addr = c->dest,
		.exit = c->exit,
		.port = c->port,
		.protocol = IPPROTO_UDP,
	};
	__u32 outcome = refused ? UDP_REFUSED : UDP_UNTOUCHED;
	__u32 *counted = bpf_map_lookup_elem(&udp_peers, &peer);
	struct udp_dest *d;

	if (counted && *counted == outcome)
		return;
	bpf_map_update_elem(&udp_peers, &peer, &outcome, BPF_ANY);
	d = bpf_map_lookup_elem(&udp_dests, &key);
	if (!d) {
		struct udp_dest zero = {};
		struct dest_key other = {};

		bpf_map_update_elem(&udp_dests, &key, &zero, BPF_NOEXIST);
		d = bpf_map_lookup_elem(&udp_dests, &key);
		if (!d) {
			__sync_fetch_and_add(&ctl->dropped, 1);
			d = bpf_map_lookup_elem(&udp_dests, &other);
			if (!d)
				return;
		}
	}
	if (refused)
		__sync_fetch_and_add(&d->refused, 1);
	else
		__sync_fetch_and_add(&d->untouched, 1);
}

/*
 * Decides whether a call that begins, or goes on with, UDP to c->dest is
 * refused. What policy does not name costs one search.
 */
static __always_inline bool udp_is_refused(struct bpf_sock_addr *ctx, struct control *ctl,
					   struct call *c, bool connecting)
{
	struct task_struct *task;
	bool refused;

	if (port_is_never_quic(c->port))
		return false;
	c->named = destination_named(ctl, &c->dest, c->port, &c->target);
	if (!c->named || addr_is_group(&c->dest))
		return false;
	if (connecting && !sock_is_nonblocking(ctx))
		return false;
	task = (struct task_struct *)bpf_get_current_task();
	if (BPF_CORE_READ(task, flags) & PF_KTHREAD)
		return false;
	if (out_of_scope(ctl, c) != GATE_MAX)
		return false;
	c->netns = bpf_get_netns_cookie(ctx);
	c->cookie = bpf_get_socket_cookie(ctx);
	c->exit = udp_exit(ctx, ctl, c);
	refused = READ_ONCE(ctl->quic_refuse) &&
		  (c->named & NAMED_FAIL_CLOSED || udp_has_proxy(ctl, c));
	udp_count(ctl, c, refused);
	return refused;
}

/* The errno is that of a port where nobody listens, which clients take for the
 * end of the attempt.
 */
static __always_inline int udp_verdict(bool refused)
{
	if (!refused)
		return 1;
	bpf_set_retval(-ECONNREFUSED);
	return 0;
}

/* Decides one connect() of a UDP socket. Returns the verdict of the hook. */
static __always_inline int on_udp_connect(struct bpf_sock_addr *ctx, struct call *c)
{
	struct control *ctl = control_get();
	bool refused;

	if (!ctl)
		return 1;
	refused = udp_is_refused(ctx, ctl, c, true);
	gate_add(GATE_UDP, refused);
	return udp_verdict(refused);
}

/* Decides one sendmsg() to an address. Gates do not count it: it may be one
 * datagram of very many.
 */
static __always_inline int on_udp_send(struct bpf_sock_addr *ctx, struct call *c)
{
	struct control *ctl = control_get();

	return ctl ? udp_verdict(udp_is_refused(ctx, ctl, c, false)) : 1;
}

#endif
