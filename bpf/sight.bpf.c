/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The probes of TLS libraries, and the hooks that tell whose socket is whose.
 * They only fetch and store; the headers decide.
 */
#include "kernel.h"

#include <bpf_helpers.h>

#include <bpf_core_read.h>

#include "sight_kernel.h"

#include "sight_regs.h"
#include "sight_scope.h"
#include "sight_socks.h"

#include "sight_conns.h"
#include "sight_events.h"
#include "sight_links.h"

#include "sight_calls.h"
#include "sight_heads.h"

/* What the attach cookie of a probe says of its function. */
#define FUNC_DIR 0x3      /* enum dir */
#define FUNC_EX 0x4       /* the length goes through the fourth argument */
#define FUNC_EX2 0x8      /* ... through the fifth */
#define FUNC_LONG 0x10    /* returns a word, not an int */
#define FUNC_COVERED 0x20 /* Go: the receiver begins with a pointer to the Conn */
#define FUNC_LIBRARY 8    /* shift */

/*
 * Whether the socket that was used during a call is the one of its connection.
 * A callback may use another one, so for OpenSSL a record that was written is
 * the better witness, and a living link is not given up for this.
 */
static __always_inline bool call_proves(const struct call *call, const struct conn *c, bool linked,
					__s64 n)
{
	if (!call->cookie || call->flags & CALL_MIXED)
		return false;
	if ((call->flags & (CALL_RECORD | CALL_CARRIED)) == CALL_RECORD)
		return false;
	if (c->library == LIBRARY_OPENSSL && linked && c->cookie != call->cookie)
		return false;
	/* A write that was repeated may leave less than it returns. */
	return call->dir == DIR_READ || call->moved >= (__u64)n;
}

/* A call returned n: what it moved, and by which socket. */
static __always_inline void call_done(const struct call *call, __s64 n)
{
	struct conn_key key = conn_key(call->conn);
	struct shown s = { .at = call->buf, .dir = call->dir & 1 };
	struct conn *c;
	bool linked;

	if (n <= 0 || call->dir == DIR_NONE)
		return;
	if (n > call->want) {
		count(TALLY_MISSED); /* not the function that we took it for */
		return;
	}
	c = conn_get(&key, call->library);
	if (!c)
		return;
	linked = conn_linked(c, &key);
	if (call_proves(call, c, linked, n))
		conn_link(c, &key, call->sk, call->cookie, SOURCE_NESTED);
	else if (c->last && !linked && c->library != LIBRARY_OPENSSL)
		conn_restart(c, &key); /* no session of these outlives its socket */
	conn_link_late(c, &key);
	s.total = n;
	s.began = call->began;
	s.offset = c->offset[s.dir & 1];
	c->offset[s.dir & 1] += n;
	choose(c, &s);
	if (s.len)
		tell_data(&key, c, &s);
}

/* The first instruction of a function of C that reads or writes. */
SEC("uprobe")
int enter(void *ctx)
{
	__u64 func = bpf_get_attach_cookie(ctx);
	struct call call = {
		.conn = c_arg(ctx, 0),
		.buf = c_arg(ctx, 1),
		.sp = stack_pointer(ctx),
		.want = c_arg(ctx, 2),
		.began = bpf_ktime_get_ns(),
		.dir = func & FUNC_DIR,
		.form = func & FUNC_LONG ? FORM_LONG : FORM_INT,
		.library = func >> FUNC_LIBRARY,
	};
	struct calls *calls;

	if (!in_scope())
		return 0;
	if (func & (FUNC_EX | FUNC_EX2)) {
		call.form = FORM_EX;
		call.length_at = func & FUNC_EX ? c_arg(ctx, 3) : c_arg(ctx, 4);
	}
	if (call.dir == DIR_NONE)
		call.buf = 0;
	if (c_arg(ctx, 2) >> 31)
		call.want = 0x7fffffff;
	calls = calls_of_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (calls)
		call_push(calls, &call, false);
	else
		count(TALLY_MISSED);
	return 0;
}

/* The return of such a function. */
SEC("uprobe")
int leave(void *ctx)
{
	struct calls *calls = calls_of_thread(0);
	struct call call;
	__s64 n;

	if (!calls || !calls->depth)
		return 0;
	if (!call_pop(calls, &call, stack_pointer(ctx), bpf_get_attach_cookie(ctx) & FUNC_DIR,
		      false))
		return 0;
	n = returned(ctx);
	if (call.form != FORM_LONG)
		n = (__s32)n;
	if (call.form == FORM_EX) {
		__u64 length = 0;

		if (n != 1)
			return 0;
		if (bpf_probe_read_user(&length, sizeof(length), (void *)call.length_at)) {
			count(TALLY_UNREAD);
			return 0;
		}
		n = length;
	}
	call_done(&call, n);
	return 0;
}

/* The first instruction of tls.(*Conn).Read or Write. */
SEC("uprobe")
int go_enter(void *ctx)
{
	__u64 func = bpf_get_attach_cookie(ctx);
	struct conn_key key = conn_key(goroutine(ctx));
	struct call call = {
		.conn = go_arg(ctx, 0),
		.buf = go_arg(ctx, 1),
		.want = go_arg(ctx, 2),
		.began = bpf_ktime_get_ns(),
		.dir = func & FUNC_DIR,
		.form = FORM_LONG,
		.library = func >> FUNC_LIBRARY,
	};
	struct calls *calls;

	if (!in_scope())
		return 0;
	if (func & FUNC_COVERED &&
	    bpf_probe_read_user(&call.conn, sizeof(call.conn), (void *)call.conn))
		return 0;
	if (go_arg(ctx, 2) >> 31)
		call.want = 0x7fffffff;
	calls = bpf_map_lookup_elem(&goroutine_calls, &key);
	if (!calls) {
		struct calls fresh = {};

		watch(key.tgid, WATCH_GO);
		bpf_map_update_elem(&goroutine_calls, &key, &fresh, BPF_NOEXIST);
		calls = bpf_map_lookup_elem(&goroutine_calls, &key);
	}
	if (calls)
		call_push(calls, &call, true);
	else
		count(TALLY_MISSED);
	return 0;
}

/* Each RET of these. A return probe would put an address on the stack that
 * Go does not know, and moves.
 */
SEC("uprobe")
int go_leave(void *ctx)
{
	struct conn_key key = conn_key(goroutine(ctx));
	struct calls *calls = bpf_map_lookup_elem(&goroutine_calls, &key);
	struct call call;

	if (!calls)
		return 0;
	if (call_pop(calls, &call, 0, bpf_get_attach_cookie(ctx) & FUNC_DIR, true))
		call_done(&call, returned(ctx));
	if (!calls->depth)
		bpf_map_delete_elem(&goroutine_calls, &key);
	return 0;
}

/* int BIO_write(BIO *b, const void *data, int dlen) */
SEC("uprobe")
int bio_write(void *ctx)
{
	struct calls *calls = calls_of_thread(0);
	struct conn_key key;
	struct call *call;
	struct conn *c;
	__s32 len;

	if (!calls)
		return 0;
	call = call_innermost(calls);
	if (!call)
		return 0;
	len = c_arg(ctx, 2);
	if (len <= 0)
		return 0;
	key = conn_key(call->conn);
	c = conn_get(&key, call->library);
	if (c && on_wire(c, &key, c_arg(ctx, 1), len))
		call->flags |= CALL_RECORD;
	return 0;
}

/* int SSL_set_fd(SSL *ssl, int fd) */
SEC("uprobe")
int set_fd(void *ctx)
{
	struct conn_key key = conn_key(c_arg(ctx, 0));
	__s32 fd = c_arg(ctx, 1);
	struct sock___sight *sk;
	struct conn *c;

	if (!in_scope())
		return 0;
	sk = sock_of_fd(fd);
	if (!sk)
		return 0;
	c = conn_get(&key, bpf_get_attach_cookie(ctx) >> FUNC_LIBRARY);
	if (!c)
		return 0;
	c->fd = fd;
	conn_link(c, &key, (__u64)sk, sock_cookie(sk), SOURCE_FD);
	return 0;
}

/* void SSL_free(SSL *ssl) */
SEC("uprobe")
int ssl_free(void *ctx)
{
	struct conn_key key = conn_key(c_arg(ctx, 0));
	struct conn *c = bpf_map_lookup_elem(&conns, &key);

	if (!c)
		return 0;
	tell_close(&key, c);
	conn_unlink(c, &key);
	bpf_map_delete_elem(&conns, &key);
	return 0;
}

/* A socket of the running task moved bytes. */
static __always_inline void on_socket(struct sock *sk, __u64 moved, __u8 dir)
{
	struct calls *calls;
	struct call *call;
	__u32 tgid;
	__u8 *why;

	if (sk->sk_protocol != IPPROTO_TCP)
		return;
	calls = calls_of_thread(0);
	call = calls ? call_innermost(calls) : NULL;
	if (call && call->dir == dir) {
		call_note(call, (__u64)sk, bpf_get_socket_cookie(sk), moved);
		if (!(call->flags & CALL_RECORD))
			return;
	}
	tgid = bpf_get_current_pid_tgid() >> 32;
	why = bpf_map_lookup_elem(&watched, &tgid);
	if (!why)
		return;
	if (*why & WATCH_GO) {
		void *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
		struct conn_key key = conn_key(goroutine(regs));

		calls = bpf_map_lookup_elem(&goroutine_calls, &key);
		call = calls ? call_innermost(calls) : NULL;
		if (call && call->dir == dir)
			call_note(call, (__u64)sk, bpf_get_socket_cookie(sk), moved);
	}
	if (*why & WATCH_RECORDS && dir == DIR_WRITE && moved >= RECORD_PREFIX) {
		void *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

		on_sent((__u64)sk, bpf_get_socket_cookie(sk), sent_from(regs));
	}
}

/* void (struct sock *sk, int ret, int flags); since 6.3 */
SEC("tp_btf/sock_send_length")
int sock_send_length(__u64 *ctx)
{
	int moved = ctx[1];

	if (moved > 0)
		on_socket((struct sock *)ctx[0], moved, DIR_WRITE);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int sock_recv_length(__u64 *ctx)
{
	int moved = ctx[1];

	if (moved > 0)
		on_socket((struct sock *)ctx[0], moved, DIR_READ);
	return 0;
}

/* The second pair tells no length: enough for any. */
#define MOVED_UNKNOWN (1 << 30)

/* void (const struct sock *sk, const struct msghdr *msg, const struct sk_buff
 * *skb, int size_goal); since 6.16
 */
SEC("tp_btf/tcp_sendmsg_locked")
int tcp_sendmsg_locked(__u64 *ctx)
{
	on_socket((struct sock *)ctx[0], MOVED_UNKNOWN, DIR_WRITE);
	return 0;
}

/* void (struct sock *sk) */
SEC("tp_btf/tcp_rcv_space_adjust")
int tcp_rcv_space_adjust(__u64 *ctx)
{
	on_socket((struct sock *)ctx[0], MOVED_UNKNOWN, DIR_READ);
	return 0;
}

/*
 * void (struct sock *sk): nobody holds the socket any more. Sessions of Go and
 * GnuTLS end with their socket, there is no probe for it. An SSL* may hold
 * plaintext yet.
 */
SEC("tp_btf/tcp_destroy_sock")
int tcp_destroy_sock(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	__u64 cookie = sock_cookie((void *)sk);
	struct conn_key *owner, key;
	struct conn *c;

	if (!cookie)
		return 0;
	owner = bpf_map_lookup_elem(&owners, &cookie);
	if (!owner)
		return 0;
	key = *owner;
	bpf_map_delete_elem(&owners, &cookie);
	c = bpf_map_lookup_elem(&conns, &key);
	if (!c || c->cookie != cookie)
		return 0;
	if (c->library == LIBRARY_OPENSSL) {
		conn_unlink(c, &key);
		return 0;
	}
	tell_close(&key, c);
	bpf_map_delete_elem(&conns, &key);
	return 0;
}

/* Run once by the daemon: its process id, as the probes see it. */
SEC("syscall")
int whoami(void *ctx __attribute__((unused)))
{
	struct control *ctl = control_get();

	if (ctl)
		ctl->own_tgid = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

/* Some helpers are for programs under the GPL alone. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
