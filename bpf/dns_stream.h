/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * DNS by TCP: messages with their length before them (RFC 1035 section 4.2.2).
 * Where one begins is known from where the one before it ends, beginning with
 * the first byte of the connection: a segment in the middle of a message may
 * hold whatever its author likes, and is not taken for one. Only messages that
 * lie in one segment, as the socket gets it, are read.
 */
#ifndef DNS_STREAM_H
#define DNS_STREAM_H

struct stream {
	__u32 next; /* sequence number of the next message, or of the body alone */
	__u32 body; /* its length, where the segment before ended after the prefix */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stream);
} streams SEC(".maps");

/* A client asks for A and AAAA at once; more than that are few. */
#define MAX_PER_SEGMENT 4

static __always_inline struct stream *stream_of(struct __sk_buff *ctx, __u32 seq)
{
	struct bpf_sock *sk = ctx->sk;
	struct bpf_tcp_sock *tp;
	struct stream *st;

	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return NULL;
	st = bpf_sk_storage_get(&streams, sk, NULL, 0);
	if (st)
		return st;
	tp = bpf_tcp_sock(sk);
	if (!tp || tp->bytes_received || tp->rcv_nxt != seq)
		return NULL;
	st = bpf_sk_storage_get(&streams, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (st)
		st->next = seq;
	return st;
}

/* A segment with len bytes at off, the first of which has the number seq. */
static __always_inline void on_segment(struct __sk_buff *ctx, __u32 off, __u32 len, __u32 seq)
{
	struct stream *st = stream_of(ctx, seq);

	if (!st) {
		count(TALLY_SPLIT);
		return;
	}
	for (int i = 0; i < MAX_PER_SEGMENT; i++) {
		__u32 at = st->next - seq, size = st->body;
		__be16 prefix;

		/* Not in this segment; or before it, and then it never comes. */
		if (at >= len)
			return;
		if (!size) {
			if (len - at < sizeof(prefix)) {
				count(TALLY_SPLIT);
				return;
			}
			if (bpf_skb_load_bytes(ctx, off + at, &prefix, sizeof(prefix))) {
				count(TALLY_UNREAD);
				return;
			}
			size = bpf_ntohs(prefix);
			at += sizeof(prefix);
			st->next += sizeof(prefix);
			if (at == len) {
				st->body = size;
				return;
			}
		}
		st->body = 0;
		st->next += size;
		if (len - at < size)
			count(TALLY_SPLIT);
		else
			on_message(ctx, off + at, size, true);
	}
}

#endif
