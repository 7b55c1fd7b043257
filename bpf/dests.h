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

/* In sock_info.dest.exit: the attempt is not counted before the exit is known
 * for good. No exit has this id.
 */
#define EXIT_LATE (~0U)

/* What is remembered of a counted socket. */
struct sock_info {
	struct dest_key dest;
	__u64 tx_bytes; /* what dests has already */
	__u64 rx_bytes;
	__u64 retransmits;
	__u32 outcome;
	__u32 timed;  /* 1: the handshake is counted, or says nothing */
	__u32 device; /* that the socket was bound to before it was redirected, or 0 */
	__u32 early;  /* exit as far as it was known at connect(), if it shows late */
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
 * Untouched sockets by cookie, only for counting. Socket storage would cost
 * several times as much as the rest of the hook. LRU, since not every kind of
 * socket is seen to close: what is lost are the bytes of the oldest of very
 * many connections, and the attempts of those whose exit was still open.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct sock_info);
} untouched SEC(".maps");

/*
 * The counters of key. When the map is full they are those of the zero
 * address, which the loader puts in first: totals stay true. NULL only if that
 * one is missing.
 */
static __always_inline struct dest *dest_get(struct control *ctl, const struct dest_key *key)
{
	struct dest *d = bpf_map_lookup_elem(&dests, key);

	if (!d) {
		struct dest zero = {};
		struct dest_key other = {};

		bpf_map_update_elem(&dests, key, &zero, BPF_NOEXIST);
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

/* Counts the attempt of a socket whose exit was still open. Of iterator and
 * close, which may both get here, one does.
 */
static __always_inline void exit_settle(struct control *ctl, struct sock_info *info, __u32 exit)
{
	struct dest *d;

	if (__sync_val_compare_and_swap(&info->dest.exit, EXIT_LATE, exit) != EXIT_LATE)
		return;
	d = dest_get(ctl, &info->dest);
	if (d)
		__sync_fetch_and_add(&d->untouched, 1);
}

/* The connection that info tells of came to nothing: it was closed before it
 * was established, or its socket is asked to connect once more.
 */
static __always_inline void sock_give_up(struct control *ctl, struct sock_info *info)
{
	struct dest *d;

	exit_settle(ctl, info, info->early);
	d = dest_get(ctl, &info->dest);
	if (d)
		outcome_set(info, d, OUTCOME_FAILED);
}

/* The socket must be unbound by now; device is what it was bound to. */
static __always_inline void remember_redirected(struct bpf_sock *sk, struct control *ctl,
						__u64 cookie, const struct dest_key *dest,
						__u32 device)
{
	/* The handshake is one with the proxy. */
	struct sock_info fresh = { .dest = *dest, .timed = 1, .device = device };
	struct sock_info *info = bpf_map_lookup_elem(&untouched, &cookie);

	if (info) {
		sock_give_up(ctl, info);
		bpf_map_delete_elem(&untouched, &cookie);
	}
	info = bpf_sk_storage_get(&redirected, sk, NULL, 0);
	if (info) {
		sock_give_up(ctl, info);
		*info = fresh;
	} else {
		bpf_sk_storage_get(&redirected, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	}
}

static __always_inline void remember_untouched(struct bpf_sock *sk, struct control *ctl,
					       __u64 cookie, const struct dest_key *dest,
					       __u32 early)
{
	struct sock_info fresh = { .dest = *dest, .early = early };
	struct sock_info *info = bpf_sk_storage_get(&redirected, sk, NULL, 0);

	/* A socket that is used again keeps the round trips of its first
	 * connection.
	 */
	if (info) {
		sock_give_up(ctl, info);
		fresh.timed = 1;
		/* From now on getpeername tells the truth. */
		bpf_sk_storage_delete(&redirected, sk);
	}
	if (bpf_map_update_elem(&untouched, &cookie, &fresh, BPF_NOEXIST) == 0)
		return;
	info = bpf_map_lookup_elem(&untouched, &cookie);
	if (info) {
		sock_give_up(ctl, info);
		fresh.timed = 1;
		*info = fresh;
	}
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
	__u32 us = BPF_CORE_READ(tp, rtt_min.s[0].v);

	if (us == ~0U || __sync_val_compare_and_swap(&info->timed, 0, 1) != 0)
		return;
	__sync_fetch_and_add(&d->handshakes, 1);
	__sync_fetch_and_add(&d->handshake_us, us);
}

/*
 * Brings the counters of a socket's destination up to date. Payload sent is
 * bytes_sent less what was sent again, plus what is still queued: unlike
 * bytes_acked it never contains SYN or FIN. bytes_received contains the FIN.
 */
static __always_inline void sock_account(struct control *ctl, struct sock_info *info,
					 const struct tcp_sock *tp, bool closing)
{
	__u8 state = BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_state);
	struct dest *d;
	__u64 tx, rx;

	/* The acknowledged SYN is the first byte of bytes_acked. */
	if (BPF_CORE_READ(tp, bytes_acked) == 0) {
		if (closing)
			sock_give_up(ctl, info);
		return;
	}
	if (READ_ONCE(info->dest.exit) == EXIT_LATE)
		exit_settle(ctl, info, exit_of_established(ctl, (const struct sock *)tp));
	d = dest_get(ctl, &info->dest);
	if (!d)
		return;
	outcome_set(info, d, OUTCOME_ESTABLISHED);
	if (!info->timed)
		sock_time(info, d, tp);

	tx = BPF_CORE_READ(tp, bytes_sent) - BPF_CORE_READ(tp, bytes_retrans);
	if (state != BPF_TCP_CLOSE) {
		__u32 queued = BPF_CORE_READ(tp, write_seq) - BPF_CORE_READ(tp, snd_nxt);

		/* A FIN behind unsent payload occupies one number. */
		if (queued && (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_LAST_ACK ||
			       state == BPF_TCP_CLOSING))
			queued--;
		tx += queued;
	}
	rx = BPF_CORE_READ(tp, bytes_received);
	if (rx &&
	    BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_flags) & 1UL << SOCK_DONE)
		rx--;
	dest_add(&d->tx_bytes, grown(&info->tx_bytes, tx));
	dest_add(&d->rx_bytes, grown(&info->rx_bytes, rx));
	dest_add(&d->retransmits, grown(&info->retransmits, BPF_CORE_READ(tp, total_retrans)));
}

#endif
