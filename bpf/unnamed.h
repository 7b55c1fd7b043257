/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The short way through the connect hooks, for what policy does not name: most
 * of a host's connections. Whatever asks for more than a glance goes the long
 * way, on_connect(), where it comes to the same.
 *
 * Whether a connection is the daemon's own is not asked here: that would cost
 * more than all the rest, and it does not matter before the connection is
 * counted. See task_is_own().
 */
#ifndef EGRESS_UNNAMED_H
#define EGRESS_UNNAMED_H

/* Whether some exit may fit that is told by what the socket has now. */
static __always_inline bool exit_shows(const struct control *ctl, struct bpf_sock *sk, bool bound)
{
	__u32 exits = ctl->exits;

	return exits & EXITS_UID || (exits & EXITS_MARK && sk->mark) ||
	       (exits & EXITS_SOURCE && bound) || (exits & EXITS_DEVICE && sk->bound_dev_if);
}

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* The kernel's own view of a TCP socket. A cast is free, but there is none
 * before 6.2.
 */
static __always_inline const struct sock *sock_inside(struct bpf_sock *sk)
{
	if (&bpf_rdonly_cast)
		return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	return (const struct sock *)bpf_skc_to_tcp_sock(sk);
}

/* Whether the socket is a client's and connects for the first time. One that
 * has no cookie yet was never counted.
 */
static __always_inline bool sock_is_new(struct bpf_sock *bpf_sk)
{
	const struct sock *sk = sock_inside(bpf_sk);

	return sk && sk->__sk_common.skc_cookie.counter == 0 &&
	       !BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
}

/* Whether policy can name the destination. False is certain. */
static __always_inline bool may_be_named(const struct control *ctl, const struct addr *dest,
					 __u16 port)
{
	__u32 number = port;
	struct named *n = bpf_map_lookup_elem(&ports, &number);

	if (!n || n->flags || ctl->canary_port)
		return true;
	return (ctl->prefixes || ctl->endpoints) && in_known_area(dest);
}

/* Whether the call may go on, and all is done that there is to do for it. Else
 * nothing is. The socket is bound if it has a source address.
 */
static __noinline bool passes_unnamed(struct bpf_sock_addr *ctx, const struct addr *dest,
				      __u16 port, bool bound)
{
	struct control *ctl = control_get();
	struct bpf_sock *sk = ctx->sk;
	struct recent *r;
	__u64 cookie;

	if (!ctl || !sk || ctx->protocol != IPPROTO_TCP || may_be_named(ctl, dest, port))
		return false;
	if (addr_is_token(dest) || (ctl->excluded && task_is_excluded()))
		return false;
	if (exit_shows(ctl, sk, bound) || !sock_is_new(sk))
		return false;
	cookie = bpf_get_socket_cookie(ctx);
	r = recent_slot(cookie);
	if (!r || !recent_claim(r, 0))
		return false;
	r->addr = *dest;
	r->exit = 0;
	r->port = port;
	r->late = (ctl->exits & EXITS_LATE) != 0;
	r->timed = 0;
	r->foreign = 0;
	r->via = VIA_NOTHING;
	recent_leave(r, cookie);
	gate_add(GATE_UNNAMED, false);
	return true;
}

static __always_inline bool passes_unnamed4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct addr dest;

	if (!sk)
		return true;
	addr_from_v4(&dest, ctx->user_ip4);
	return passes_unnamed(ctx, &dest, bpf_ntohs(ctx->user_port), sk->src_ip4);
}

static __always_inline bool passes_unnamed6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct addr dest;

	if (!sk)
		return true;
	dest.words[0] = ctx->user_ip6[0];
	dest.words[1] = ctx->user_ip6[1];
	dest.words[2] = ctx->user_ip6[2];
	dest.words[3] = ctx->user_ip6[3];
	return passes_unnamed(ctx, &dest, bpf_ntohs(ctx->user_port),
			      sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]);
}

#endif
