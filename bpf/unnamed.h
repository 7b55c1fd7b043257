/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The short way through the connect hooks, for what policy does not name: most
 * of a host's connections. Whatever asks for more than a glance goes the long
 * way, on_connect(), where it comes to the same.
 *
 * Whether a connection is the daemon's own is not asked here: the calls that it
 * takes are a good part of the cost, and it does not matter before the
 * connection is counted. See task_is_own().
 */
#ifndef EGRESS_UNNAMED_H
#define EGRESS_UNNAMED_H

/* Whether the client chose a source address. */
static __always_inline bool sock_is_bound(struct bpf_sock *sk, bool v6)
{
	if (!v6)
		return sk->src_ip4;
	return sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3];
}

/* Whether an exit may fit by more than the socket's owner. */
static __always_inline bool exit_shows(const struct control *ctl, struct bpf_sock *sk, bool v6)
{
	__u32 exits = ctl->exits;

	return (exits & EXITS_MARK && sk->mark) ||
	       (exits & EXITS_SOURCE && sock_is_bound(sk, v6)) ||
	       (exits & EXITS_DEVICE && sk->bound_dev_if);
}

/* The exit by the owner alone. */
static __always_inline __u32 exit_of_owner(const struct control *ctl, __u32 uid)
{
	struct exit_rule *rule = NULL;

	if (ctl->exits & EXITS_UID)
		rule = bpf_map_lookup_elem(&exit_uids, &uid);
	return rule ? rule->id : 0;
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
 * nothing is.
 */
static __always_inline bool passes_unnamed(struct bpf_sock_addr *ctx, const struct addr *dest,
					   __u16 port, bool v6)
{
	struct control *ctl = control_get();
	struct bpf_sock *sk = ctx->sk;
	struct sock_looks looks = {};
	struct recent *r;
	__u32 exit;

	if (!ctl || !sk)
		return false;
	r = recent_slot(sock_id(ctl, sk));
	/* First, so that both are on their way while the rest is looked at. */
	if (!r || READ_ONCE(r->sock) || !gate_touch(GATE_UNNAMED))
		return false;
	if (ctx->protocol != IPPROTO_TCP || may_be_named(ctl, dest, port))
		return false;
	if (addr_is_token(dest) || (ctl->excluded && task_is_excluded()))
		return false;
	if (exit_shows(ctl, sk, v6))
		return false;
	sock_look(sk, &looks);
	if (looks.cookie || looks.kernel)
		return false;
	exit = exit_of_owner(ctl, looks.uid);
	if (!recent_claim(r, 0))
		return false;
	r->addr = *dest;
	r->exit = exit;
	r->port = port;
	r->late = (ctl->exits & EXITS_LATE) != 0;
	r->timed = 0;
	r->via = VIA_NOTHING;
	recent_leave(r, sock_id(ctl, sk));
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
	return passes_unnamed(ctx, &dest, bpf_ntohs(ctx->user_port), false);
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
	/* In memory once, not in four spilled registers: there is little stack. */
	asm volatile("" ::"r"(&dest) : "memory");
	return passes_unnamed(ctx, &dest, bpf_ntohs(ctx->user_port), true);
}

#endif
