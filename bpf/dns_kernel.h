/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the reader of DNS answers needs to know of Linux beyond kernel.h. */
#ifndef DNS_KERNEL_H
#define DNS_KERNEL_H

/* include/uapi/linux/bpf.h: enum bpf_map_type */
enum {
	BPF_MAP_TYPE_RINGBUF = 27,
};

/* include/uapi/linux/in6.h and include/net/ipv6.h */
enum {
	NEXTHDR_HOP = 0,
	NEXTHDR_ROUTING = 43,
	NEXTHDR_FRAGMENT = 44,
	NEXTHDR_AUTH = 51,
	NEXTHDR_DEST = 60,
};

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"

/* include/uapi/linux/bpf.h */
struct bpf_tcp_sock {
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 ecn_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 segs_out;
	__u32 data_segs_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u64 bytes_received;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/linux/skbuff.h; what a struct __sk_buff is before the verifier
 * rewrites the accesses to it
 */
struct sk_buff {
	struct sock *sk;
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#endif
