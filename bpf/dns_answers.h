/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the daemon is told: DNS messages that may hold addresses. */
#ifndef DNS_ANSWERS_H
#define DNS_ANSWERS_H

struct answer {
	__u64 time;   /* CLOCK_MONOTONIC ns */
	__u64 netns;  /* cookie of the namespace of the socket that it is for */
	__u64 cgroup; /* id of the socket's */
	__u32 len;    /* bytes of the message, which follows */
	__u8 tcp;
	__u8 pad[3];
};

/* The daemon sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} answers SEC(".maps");

/* What became of a message, or of a segment or packet without a whole one. */
enum tally {
	TALLY_SENT,
	TALLY_LOST,      /* the ring was full */
	TALLY_QUERY,     /* no response to a standard query */
	TALLY_NEGATIVE,  /* an error, or no records */
	TALLY_SHORT,     /* less than a header */
	TALLY_LARGE,     /* more than MAX_MESSAGE */
	TALLY_SPLIT,     /* TCP: not all of it in one segment, or the stream was joined late */
	TALLY_EXTENSION, /* IPv6 with extension headers: not looked into */
	TALLY_UNREAD,    /* bytes that could not be read */
	TALLY_MAX,
};

/* Keep the types in the object, from which Go's are generated. */
const struct answer *answer_type __attribute__((unused));
const enum tally *tally_type __attribute__((unused));

#include "tally.h"

/* RFC 1035 section 4.1.1 */
struct dns_header {
	__be16 id;
	__u8 flags; /* QR, opcode, AA, TC, RD */
	__u8 code;  /* RA, Z, AD, CD, RCODE */
	__be16 questions;
	__be16 answers;
	__be16 authorities;
	__be16 additionals;
};

#define DNS_QR 0x80
#define DNS_OPCODE 0x78
#define DNS_RCODE 0x0f

#define MAX_MESSAGE 16384

static __always_inline __u64 netns_of(struct __sk_buff *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx;

	return BPF_CORE_READ(skb, sk, __sk_common.skc_net.net, net_cookie);
}

/* Tells of a message of at most size bytes, in a record of that size: the ring
 * wants to know it beforehand.
 */
static __always_inline void tell_sized(struct __sk_buff *ctx, __u32 off, __u32 len, bool tcp,
				       const __u32 size)
{
	struct answer *a = bpf_ringbuf_reserve(&answers, sizeof(*a) + size, 0);

	if (!a) {
		count(TALLY_LOST);
		return;
	}
	/* What the compiler knows of len, older verifiers forget. */
	asm volatile("" : "+r"(len));
	if (len == 0 || len > size || bpf_skb_load_bytes(ctx, off, a + 1, len)) {
		bpf_ringbuf_discard(a, 0);
		count(TALLY_UNREAD);
		return;
	}
	a->time = bpf_ktime_get_ns();
	a->netns = netns_of(ctx);
	a->cgroup = bpf_skb_cgroup_id(ctx);
	a->len = len;
	a->tcp = tcp;
	__builtin_memset(a->pad, 0, sizeof(a->pad));
	bpf_ringbuf_submit(a, 0);
	count(TALLY_SENT);
}

/* Tells of the message of len bytes at off, if it can hold addresses. */
static __always_inline void on_message(struct __sk_buff *ctx, __u32 off, __u32 len, bool tcp)
{
	struct dns_header h;

	if (len < sizeof(h)) {
		count(TALLY_SHORT);
		return;
	}
	if (bpf_skb_load_bytes(ctx, off, &h, sizeof(h))) {
		count(TALLY_UNREAD);
		return;
	}
	if (!(h.flags & DNS_QR) || h.flags & DNS_OPCODE)
		count(TALLY_QUERY);
	else if (h.code & DNS_RCODE || !h.answers)
		count(TALLY_NEGATIVE);
	else if (len <= 256)
		tell_sized(ctx, off, len, tcp, 256);
	else if (len <= 1024)
		tell_sized(ctx, off, len, tcp, 1024);
	else if (len <= 4096)
		tell_sized(ctx, off, len, tcp, 4096);
	else if (len <= MAX_MESSAGE)
		tell_sized(ctx, off, len, tcp, MAX_MESSAGE);
	else
		count(TALLY_LARGE);
}

#endif
