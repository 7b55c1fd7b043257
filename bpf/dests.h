/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Counts per destination and exit. Bytes and outcome are read from the socket
 * when it is closed, or when somebody asks; no program runs per packet.
 */
#ifndef EGRESS_DESTS_H
#define EGRESS_DESTS_H

struct dest_key {
	struct addr addr;
	__u32 exit;
	__u16 port; /* host order */
	__u8 protocol;
	__u8 pad;
};

/* All words only grow. */
struct dest {
	__u64 redirected; /* connect() calls led to the proxy */
	__u64 untouched;
	__u64 granted; /* let go by the kernel plane at once */
	__u64 held;    /* let go by it at their turn */
	__u64 refused;
	__u64 established; /* of the first two: the handshake ended well */
	__u64 failed;
	__u64 tx_bytes; /* payload that the application handed over */
	__u64 rx_bytes; /* payload received in order */
	__u64 retransmits; /* segments */
	__u64 handshakes;  /* of untouched connections, whose time is known */
	__u64 handshake_us; /* all of theirs: see sock_time */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct dest_key);
	__type(value, struct dest);
} dests SEC(".maps");

enum {
	OUTCOME_PENDING,
	OUTCOME_ESTABLISHED,
	OUTCOME_FAILED,
};

/* In sock_info.dest.exit: the attempt is not counted yet. No exit has this id. */
#define EXIT_LATE (~0U)

/* How a connection that is not the proxy's got on its way. */
enum {
	VIA_NOTHING, /* untouched */
	VIA_GRANTED,
	VIA_HELD,
	VIA_REFUSED, /* on its way out of the host */
};

/* What is remembered of a counted socket. */
struct sock_info {
	struct dest_key dest;
	__u64 tx_bytes; /* what dests has already */
	__u64 rx_bytes;
	__u64 retransmits;
	__u32 outcome;
	__u32 timed;  /* 1: the handshake is counted, or says nothing */
	__u32 device; /* that the socket was bound to before it was redirected, or 0 */
	__u32 early;  /* exit as far as it was known at connect() */
	__u32 late;   /* 1: the exit shows once the connection is established */
	__u32 via;    /* VIA_* */
};

/* Redirected sockets, for getpeername and for counting: freed with the
 * socket, and never before.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sock_info);
} redirected SEC(".maps");

/*
 * Untouched connections of which nothing is counted yet, in the slot that the
 * address of their socket chooses: of all maps the one that costs connect()
 * least. Most are taken out at close(), and never get any further. The kernel
 * uses the memory of a closed socket for the next one, so that a slot that is
 * wanted was used a moment ago, and is in the processor's cache. A cookie, which
 * the kernel would have to make first, is not asked for.
 *
 * Who changes a slot owns it: sock goes from what was found to RECENT_BUSY, and
 * back with all else written. An owner never waits, others hardly do.
 *
 * A slot is its socket's until that one is closed, asked to connect once more,
 * or found open when somebody asks. Who finds another one there goes to the map
 * untouched. The hook at close() is attached before those at connect(), and
 * programs and maps are gone together, so no slot outlives its socket.
 */
struct recent {
	__u64 sock; /* see sock_id; 0 = free */
	struct addr addr;
	__u32 exit; /* see sock_info.early */
	__u16 port; /* host order */
	__u8 late : 1;
	__u8 timed : 1;
	__u8 : 6;
	__u8 via;
};

#define RECENT_SLOTS 131072
#define RECENT_SHIFT 11
#define RECENT_BUSY (~0ULL)

/* Only values of such an array begin at a page, and none lies in two lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct recent);
} recent SEC(".maps");

/*
 * Untouched sockets by cookie, for those that have no slot any more, or never
 * had one. A socket without a cookie is not here. Socket storage would cost
 * several times as much. LRU, since close() may just miss one that is on its way
 * here: what is lost are the bytes of the oldest of very many connections, and
 * the attempts of those whose exit was still open.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct sock_info);
} untouched SEC(".maps");

/* Not on the stack, of which there is little. */
static const struct dest dest_zero;

/*
 * The counters of key. When the map is full they are those of the zero
 * address, which the loader puts in first: totals stay true. NULL only if that
 * one is missing.
 */
static __always_inline struct dest *dest_get(struct control *ctl, const struct dest_key *key)
{
	struct dest *d = bpf_map_lookup_elem(&dests, key);

	if (!d) {
		struct dest_key other = {};

		bpf_map_update_elem(&dests, key, &dest_zero, BPF_NOEXIST);
		d = bpf_map_lookup_elem(&dests, key);
		if (!d) {
			__sync_fetch_and_add(&ctl->dropped, 1);
			d = bpf_map_lookup_elem(&dests, &other);
		}
	}
	return d;
}

/* How far *seen was behind total; afterwards it is not. Iterator and close may
 * account for one socket at the same time, and each byte counts once.
 */
static __always_inline __u64 grown(__u64 *seen, __u64 total)
{
	for (int i = 0; i < 8; i++) {
		__u64 old = *(volatile __u64 *)seen;

		if (total <= old)
			return 0;
		if (__sync_val_compare_and_swap(seen, old, total) == old)
			return total - old;
	}
	return 0;
}

static __always_inline void dest_add(__u64 *counter, __u64 n)
{
	if (n)
		__sync_fetch_and_add(counter, n);
}

static __always_inline void outcome_set(struct sock_info *info, struct dest *d, __u32 outcome)
{
	if (__sync_val_compare_and_swap(&info->outcome, OUTCOME_PENDING, outcome) !=
	    OUTCOME_PENDING)
		return;
	if (outcome == OUTCOME_ESTABLISHED)
		__sync_fetch_and_add(&d->established, 1);
	else
		__sync_fetch_and_add(&d->failed, 1);
}

/* The counter of attempts that went this way. */
static __always_inline __u64 *dest_attempts(struct dest *d, __u32 via)
{
	switch (via) {
	case VIA_GRANTED:
		return &d->granted;
	case VIA_HELD:
		return &d->held;
	case VIA_REFUSED:
		return &d->refused;
	}
	return &d->untouched;
}

/* The counters of a socket whose exit is this one, unless it was settled
 * already. The attempt is counted, if it was not. Of iterator and close, which
 * may both get here, one does.
 */
static __always_inline struct dest *exit_settle(struct control *ctl, struct sock_info *info,
						__u32 exit)
{
	bool open = __sync_val_compare_and_swap(&info->dest.exit, EXIT_LATE, exit) == EXIT_LATE;
	struct dest *d = dest_get(ctl, &info->dest);

	if (d && open)
		__sync_fetch_and_add(dest_attempts(d, info->via), 1);
	return d;
}

/* The connection that info tells of came to nothing: it was closed before it
 * was established, or its socket is asked to connect once more.
 */
static __always_inline void sock_give_up(struct control *ctl, struct sock_info *info)
{
	struct dest *d = exit_settle(ctl, info, info->early);

	if (d)
		outcome_set(info, d, OUTCOME_FAILED);
}

/* What a socket tells of itself. */
struct sock_looks {
	__u64 cookie; /* 0: none yet, so it was never counted */
	__u32 kernel; /* not 0: it is the kernel's own */
	__u32 uid;    /* the owner */
};

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* For TCP sockets. The cast is free, but there is none before 6.2. */
static __always_inline void sock_look(struct bpf_sock *bpf_sk, struct sock_looks *looks)
{
	const struct sock *sk;

	if (&bpf_rdonly_cast) {
		sk = bpf_rdonly_cast(bpf_sk, bpf_core_type_id_kernel(struct sock));
		looks->cookie = sk->__sk_common.skc_cookie.counter;
		looks->kernel = BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
		looks->uid = sk->sk_uid.val;
		return;
	}
	sk = (const struct sock *)bpf_skc_to_tcp_sock(bpf_sk);
	if (!sk)
		return;
	looks->cookie = sk->__sk_common.skc_cookie.counter;
	looks->kernel = BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
	looks->uid = sk->sk_uid.val;
}

/* The same for what is read of a connection: a socket of the kernel to read with
 * TCP_READ, which before 6.2 calls a helper for each word.
 */
static __always_inline const struct tcp_sock *tcp_sock_of(const void *sk)
{
	if (&bpf_rdonly_cast)
		return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	return sk;
}

#define TCP_READ(tp, field) (&bpf_rdonly_cast ? (tp)->field : BPF_CORE_READ(tp, field))

/* Which of the open sockets this is: its address, less that of a map's value.
 * Of two pointers the verifier allows nothing but the difference, and that to
 * the privileged only. For struct bpf_sock, where it stands for a socket of
 * the kernel, and for that one itself.
 */
static __always_inline __u64 sock_id(const struct control *ctl, const void *sk)
{
	__u64 id = (__u64)sk;

	asm volatile("%0 -= %1" : "+r"(id) : "r"(ctl));
	return id;
}

/* A socket of TCP takes more than 2 KiB, so each has a slot of its own within
 * 256 MiB, and those that the kernel has made together share pages of slots:
 * to find a page costs more than all the rest.
 */
static __always_inline struct recent *recent_slot(__u64 id)
{
	__u32 slot = id >> RECENT_SHIFT & (RECENT_SLOTS - 1);

	return bpf_map_lookup_elem(&recent, &slot);
}

/* Whether a connection of the socket is in its slot. */
static __always_inline bool recent_holds(const struct control *ctl, const struct bpf_sock *sk)
{
	__u64 id = sock_id(ctl, sk);
	struct recent *r = recent_slot(id);

	return r && READ_ONCE(r->sock) == id;
}

/* Whether the slot was as found, and now is ours. */
static __always_inline bool recent_claim(struct recent *r, __u64 found)
{
	return __sync_val_compare_and_swap(&r->sock, found, RECENT_BUSY) == found;
}

/* Whether the processor makes stores visible in their order, as x86 does; set by
 * the loader. There an exchange would only wait until all of them are.
 */
const volatile bool stores_in_order;

/* Gives up a slot that is ours, after all that was written to it. */
static __always_inline void recent_leave(struct recent *r, __u64 id)
{
	if (stores_in_order) {
		asm volatile("" ::: "memory");
		*(volatile __u64 *)&r->sock = id;
	} else {
		(void)__sync_lock_test_and_set(&r->sock, id);
	}
}

static __always_inline void recent_read(const struct recent *r, struct sock_info *info)
{
	*info = (struct sock_info){
		.dest = {
			.addr = r->addr,
			.exit = EXIT_LATE,
			.port = r->port,
			.protocol = IPPROTO_TCP,
		},
		.timed = r->timed,
		.via = r->via,
		.early = r->exit,
		.late = r->late,
	};
}

#define RECENT_TRIES 64

/* Waits until a slot is nobody's: its owner may be about to move what we look
 * for to the map untouched. Not longer, since the owner may not be running.
 */
static __always_inline void recent_wait(const struct recent *r)
{
	for (int i = 0; i < RECENT_TRIES; i++)
		if (READ_ONCE(r->sock) != RECENT_BUSY)
			return;
}

/* Remembers an untouched connection outside the slots. An attempt whose exit is
 * known is counted now, since the map may lose it, and so is one that finds no
 * room.
 */
static __always_inline void untouched_put(struct control *ctl, __u64 cookie, struct sock_info *info)
{
	if (!info->late)
		exit_settle(ctl, info, info->early);
	if (bpf_map_update_elem(&untouched, &cookie, info, BPF_NOEXIST) != 0 && info->late)
		exit_settle(ctl, info, info->early);
}

/* Takes the connection of the socket out of its slot, if it is there. */
static __always_inline bool recent_take(struct recent *r, __u64 id, struct sock_info *info)
{
	if (READ_ONCE(r->sock) != id || !recent_claim(r, id))
		return false;
	recent_read(r, info);
	recent_leave(r, 0);
	return true;
}

/* What is left to count of a connection that came to nothing. */
struct ended {
	struct dest_key dest;
	__u32 attempts; /* 0 or 1 */
	__u32 failures; /* 0 or 1 */
	__u64 via;
};

static __always_inline void ended_count(struct control *ctl, const struct ended *e)
{
	struct dest *d = dest_get(ctl, &e->dest);

	if (!d)
		return;
	__sync_fetch_and_add(dest_attempts(d, e->via), e->attempts);
	__sync_fetch_and_add(&d->failed, e->failures);
}

/* Ends an earlier connection of the socket that is remembered in info. */
static __always_inline void info_end(struct sock_info *info, struct ended *e)
{
	e->attempts =
		__sync_val_compare_and_swap(&info->dest.exit, EXIT_LATE, info->early) == EXIT_LATE;
	e->failures = __sync_val_compare_and_swap(&info->outcome, OUTCOME_PENDING,
						  OUTCOME_FAILED) == OUTCOME_PENDING;
	e->dest = info->dest;
	e->via = info->via;
}

/* Forgets an earlier connection of the socket, wherever it is remembered. False
 * if there is none. From now on getpeername tells the truth.
 */
static __always_inline bool sock_forget(struct control *ctl, struct bpf_sock *sk, __u64 cookie,
					struct ended *e)
{
	struct sock_info *info = bpf_sk_storage_get(&redirected, sk, NULL, 0);
	struct recent *r;
	__u64 id;

	if (info) {
		info_end(info, e);
		bpf_sk_storage_delete(&redirected, sk);
		return true;
	}
	id = sock_id(ctl, sk);
	r = recent_slot(id);
	if (!r)
		return false;
	if (READ_ONCE(r->sock) == id && recent_claim(r, id)) {
		e->dest.addr = r->addr;
		e->dest.exit = r->exit;
		e->dest.port = r->port;
		e->dest.protocol = IPPROTO_TCP;
		e->dest.pad = 0;
		e->attempts = 1;
		e->failures = 1;
		e->via = r->via;
		recent_leave(r, 0);
		return true;
	}
	recent_wait(r);
	info = bpf_map_lookup_elem(&untouched, &cookie);
	if (!info)
		return false;
	info_end(info, e);
	bpf_map_delete_elem(&untouched, &cookie);
	return true;
}

/* Remembers an untouched connection, of a socket of which nothing else is, until
 * its attempt is counted.
 */
static __always_inline void remember_untouched(struct control *ctl, struct bpf_sock_addr *ctx,
					       const struct recent *next)
{
	__u64 id = sock_id(ctl, ctx->sk);
	struct recent *r = recent_slot(id);
	struct sock_info info;

	if (!r)
		return;
	if (!recent_claim(r, 0)) {
		recent_read(next, &info);
		untouched_put(ctl, bpf_get_socket_cookie(ctx), &info);
		return;
	}
	r->addr = next->addr;
	r->exit = next->exit;
	r->port = next->port;
	r->late = next->late;
	r->timed = next->timed;
	r->via = next->via;
	recent_leave(r, id);
}

/*
 * Counts the time of the handshake once: the least round trip that the kernel
 * has seen by then. That is from SYN to SYN-ACK, unless a later segment was
 * answered sooner; how long the peer takes to acknowledge data plays no part.
 * Where the SYN was sent again, its answer tells nothing, and data has to. The
 * word has all bits set before the first round trip.
 */
static __always_inline void sock_time(struct sock_info *info, struct dest *d,
				      const struct tcp_sock *tp)
{
	__u32 us = TCP_READ(tp, rtt_min.s[0].v);

	if (us == ~0U || __sync_val_compare_and_swap(&info->timed, 0, 1) != 0)
		return;
	__sync_fetch_and_add(&d->handshakes, 1);
	__sync_fetch_and_add(&d->handshake_us, us);
}

/* Whether the connection got through its handshake. The acknowledged SYN is the
 * first byte of bytes_acked.
 */
static __always_inline bool sock_was_established(const struct tcp_sock *tp)
{
	return TCP_READ(tp, bytes_acked) != 0;
}

/* Moves the connection of an open socket, which has a cookie by now, to the map
 * untouched, where it can be accounted for bit by bit. One whose exit is open
 * stays until it shows, and the daemon's own are not counted.
 */
static __always_inline void recent_settle(struct control *ctl, __u64 cookie, struct sock *sk,
					  bool own)
{
	__u64 id = sock_id(ctl, sk);
	struct recent *r = recent_slot(id);
	struct sock_info info;

	if (!r || READ_ONCE(r->sock) != id)
		return;
	if (r->late && !sock_was_established(tcp_sock_of(sk)))
		return;
	if (!recent_claim(r, id))
		return;
	if (!own) {
		recent_read(r, &info);
		untouched_put(ctl, cookie, &info);
	}
	recent_leave(r, 0);
}

/*
 * Brings the counters of a socket's destination up to date. Payload sent is
 * bytes_sent less what was sent again, plus what is still queued: unlike
 * bytes_acked it never contains SYN or FIN. bytes_received contains the FIN.
 */
static __always_inline void sock_account(struct control *ctl, struct sock_info *info,
					 const struct tcp_sock *tp, bool closing)
{
	__u8 state = TCP_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_state);
	struct dest *d;
	__u64 tx, rx;

	if (!sock_was_established(tp)) {
		if (closing)
			sock_give_up(ctl, info);
		return;
	}
	if (info->late && READ_ONCE(info->dest.exit) == EXIT_LATE)
		d = exit_settle(ctl, info, exit_of_established(ctl, (const struct sock *)tp));
	else
		d = exit_settle(ctl, info, info->early);
	if (!d)
		return;
	outcome_set(info, d, OUTCOME_ESTABLISHED);
	if (!info->timed)
		sock_time(info, d, tp);

	tx = TCP_READ(tp, bytes_sent) - TCP_READ(tp, bytes_retrans);
	if (state != BPF_TCP_CLOSE) {
		__u32 queued = TCP_READ(tp, write_seq) - TCP_READ(tp, snd_nxt);

		/* A FIN behind unsent payload occupies one number. */
		if (queued && (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_LAST_ACK ||
			       state == BPF_TCP_CLOSING))
			queued--;
		tx += queued;
	}
	rx = TCP_READ(tp, bytes_received);
	if (rx && TCP_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_flags) & 1UL << SOCK_DONE)
		rx--;
	dest_add(&d->tx_bytes, grown(&info->tx_bytes, tx));
	dest_add(&d->rx_bytes, grown(&info->rx_bytes, rx));
	dest_add(&d->retransmits, grown(&info->retransmits, TCP_READ(tp, total_retrans)));
}

#endif
