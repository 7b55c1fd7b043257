/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The hooks of egressd. They only fetch and store; the headers decide. */
#include "kernel.h"

#include <bpf_helpers.h>

#include <bpf_core_read.h>
#include <bpf_endian.h>

#include "addr.h"
#include "cell.h"
#include "control.h"
#include "exits.h"

#include "dests.h"
#include "flows.h"
#include "gates.h"
#include "lanes.h"
#include "named.h"
#include "pace.h"
#include "plane.h"

#include "connect.h"
#include "syn.h"
#include "udp.h"
#include "unnamed.h"

static __always_inline int decide4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct call c = { .port = bpf_ntohs(ctx->user_port) };
	__u16 listener = 0;

	if (!sk)
		return 1;
	addr_from_v4(&c.dest, ctx->user_ip4);
	if (sk->src_ip4)
		addr_from_v4(&c.source, sk->src_ip4);
	if (ctx->protocol == IPPROTO_UDP) {
		c.device = sk->bound_dev_if;
		return on_udp_connect(ctx, &c);
	}
	on_connect(ctx, &c, &listener);
	if (c.redirected) {
		ctx->user_ip4 = c.token;
		ctx->user_port = bpf_htons(listener);
	}
	/* The verifier wants to see the numbers. */
	return c.refused ? 0 : 1;
}

static __always_inline int decide6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct call c = { .port = bpf_ntohs(ctx->user_port) };
	__u16 listener = 0;

	if (!sk)
		return 1;
	c.dest.words[0] = ctx->user_ip6[0];
	c.dest.words[1] = ctx->user_ip6[1];
	c.dest.words[2] = ctx->user_ip6[2];
	c.dest.words[3] = ctx->user_ip6[3];
	c.source.words[0] = sk->src_ip6[0];
	c.source.words[1] = sk->src_ip6[1];
	c.source.words[2] = sk->src_ip6[2];
	c.source.words[3] = sk->src_ip6[3];
	if (ctx->protocol == IPPROTO_UDP) {
		c.device = sk->bound_dev_if;
		return on_udp_connect(ctx, &c);
	}
	c.native_v6 = !addr_is_v4(&c.dest);
	on_connect(ctx, &c, &listener);
	if (c.redirected) {
		/* The kernel looks at the address after this hook. Where it
		 * finds it v4-mapped it goes on by IPv4.
		 */
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = c.v6_loopback ? 0 : MAPPED_PREFIX;
		ctx->user_ip6[3] = c.v6_loopback ? bpf_htonl(1) : c.token;
		ctx->user_port = bpf_htons(listener);
	}
	/* The verifier wants to see the numbers. */
	return c.refused ? 0 : 1;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (passes_unnamed4(ctx))
		return 1;
	/* So that the verifier looks at the rest once, whatever it has seen of
	 * the address before.
	 */
	barrier_var(ctx);
	return decide4(ctx);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	if (passes_unnamed6(ctx))
		return 1;
	barrier_var(ctx); /* see connect4 */
	return decide6(ctx);
}

/* Also for v4-mapped addresses of IPv6 sockets. */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct call c = { .port = bpf_ntohs(ctx->user_port) };
	__be32 source = ctx->msg_src_ip4;

	if (!sk || ctx->protocol != IPPROTO_UDP)
		return 1;
	addr_from_v4(&c.dest, ctx->user_ip4);
	if (source)
		addr_from_v4(&c.source, source);
	c.device = sk->bound_dev_if;
	return on_udp_send(ctx, &c);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct call c = { .port = bpf_ntohs(ctx->user_port) };

	if (!sk || ctx->protocol != IPPROTO_UDP)
		return 1;
	c.dest.words[0] = ctx->user_ip6[0];
	c.dest.words[1] = ctx->user_ip6[1];
	c.dest.words[2] = ctx->user_ip6[2];
	c.dest.words[3] = ctx->user_ip6[3];
	c.source.words[0] = ctx->msg_src_ip6[0];
	c.source.words[1] = ctx->msg_src_ip6[1];
	c.source.words[2] = ctx->msg_src_ip6[2];
	c.source.words[3] = ctx->msg_src_ip6[3];
	c.device = sk->bound_dev_if;
	return on_udp_send(ctx, &c);
}

/* What a redirected socket is told of its peer, or NULL for the truth. */
static __always_inline struct sock_info *redirected_sock(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&redirected, sk, NULL, 0) : NULL;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct sock_info *info = redirected_sock(ctx);

	if (info) {
		ctx->user_ip4 = info->dest.addr.words[3];
		ctx->user_port = bpf_htons(info->dest.port);
	}
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct sock_info *info = redirected_sock(ctx);

	if (info) {
		ctx->user_ip6[0] = info->dest.addr.words[0];
		ctx->user_ip6[1] = info->dest.addr.words[1];
		ctx->user_ip6[2] = info->dest.addr.words[2];
		ctx->user_ip6[3] = info->dest.addr.words[3];
		ctx->user_port = bpf_htons(info->dest.port);
	}
	return 1;
}

/* Runs at close(), before the FIN. The record of a flow that nobody took yet
 * stays: its bytes wait in the listener's queue.
 */
SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *ctx)
{
	/* The context of this hook is the socket itself. */
	const struct tcp_sock *tp = tcp_sock_of(ctx);
	struct control *ctl = control_get();
	struct sock_info *info, taken;
	struct recent *r;
	__u64 id, cookie;

	if (!ctl || ctx->protocol != IPPROTO_TCP)
		return 1;
	id = sock_id(ctl, ctx);
	r = recent_slot(id);
	if (!r)
		return 1;
	if (recent_take(r, id, &taken)) {
		/* Whoever closes it is who connected it, unless the iterator
		 * had its file in hands when that one let go.
		 */
		if (current_is_reader(ctl) || !current_is_own(ctl))
			sock_account(ctl, &taken, tp, true);
		return 1;
	}
	/* Accepted connections end here: all that is remembered elsewhere has one. */
	cookie = TCP_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter);
	if (cookie == 0)
		return 1;
	info = bpf_sk_storage_get(&redirected, ctx, NULL, 0);
	if (info) {
		sock_account(ctl, info, tp, true);
		return 1;
	}
	recent_wait(r);
	info = bpf_map_lookup_elem(&untouched, &cookie);
	if (info) {
		sock_account(ctl, info, tp, true);
		bpf_map_delete_elem(&untouched, &cookie);
	}
	return 1;
}

/*
 * Reading this iterator brings the counters of open sockets up to date. It
 * finds them by the file tables of all processes, in whatever network
 * namespace; a socket that is found twice counts once.
 */
SEC("iter/task_file")
int account_open(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct sock_info *info;
	struct socket *socket;
	struct control *ctl;
	struct sock *sk;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	ctl = control_get();
	if (!sk || sk->sk_protocol != IPPROTO_TCP || !ctl)
		return 0;
	ctl->reader = bpf_get_current_pid_tgid();
	info = bpf_sk_storage_get(&redirected, sk, NULL, 0);
	if (!info) {
		__u64 cookie = bpf_get_socket_cookie(sk);

		recent_settle(ctl, cookie, sk, task_is_own(ctl, task));
		info = bpf_map_lookup_elem(&untouched, &cookie);
	}
	if (info)
		sock_account(ctl, info, tcp_sock_of(sk), false);
	return 0;
}

/* At the way out of devices that have fq; the filter of older kernels has this
 * name, too.
 */
SEC("tc")
int egressd_pace(struct __sk_buff *skb)
{
	return on_syn(skb);
}

/* Run once by the daemon: its process id, as the hooks see it. */
SEC("syscall")
int whoami(void *ctx __attribute__((unused)))
{
	struct control *ctl = control_get();

	if (ctl)
		ctl->own_tgid = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
