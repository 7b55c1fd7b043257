/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The hook that sees DNS answers on their way to shaped sockets. It drops
 * nothing and changes nothing.
 */
#include "kernel.h"

#include <bpf_helpers.h>

#include <bpf_core_read.h>
#include <bpf_endian.h>

#include "dns_kernel.h"

#include "dns_scope.h"

#include "dns_answers.h"
#include "dns_stream.h"

#define DNS_PORT 53

/* Lengths without options. */
#define TCP_HEAD 20
#define UDP_HEAD 8
#define IPV4_HEAD 20
#define IPV6_HEAD 40

/* The packet of a socket whose peer is a DNS server, or that has none. Headers
 * lie where they can be read directly: the protocols had them pulled.
 */
static __always_inline void on_packet(struct __sk_buff *ctx)
{
	__u8 *data = (void *)(unsigned long)ctx->data;
	__u8 *end = (void *)(unsigned long)ctx->data_end;
	__u32 off, len, seq;
	__u8 protocol;
	__u8 *l4;

	if (data + IPV4_HEAD > end)
		return;
	if (data[0] >> 4 == 4) {
		off = (data[0] & 0xf) * 4;
		protocol = data[9];
	} else {
		off = IPV6_HEAD;
		protocol = data[6];
	}
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP) {
		if (data[0] >> 4 == 6 && ctx->remote_port &&
		    (protocol == NEXTHDR_HOP || protocol == NEXTHDR_ROUTING ||
		     protocol == NEXTHDR_FRAGMENT || protocol == NEXTHDR_AUTH ||
		     protocol == NEXTHDR_DEST))
			count(TALLY_EXTENSION);
		return;
	}
	l4 = data + off;
	if (l4 + UDP_HEAD > end || *(__be16 *)l4 != bpf_htons(DNS_PORT))
		return;
	len = ctx->len;
	if (protocol == IPPROTO_UDP) {
		off += UDP_HEAD;
		if (len >= off && !socket_is_excluded(ctx))
			on_message(ctx, off, len - off, false);
		return;
	}
	if (l4 + TCP_HEAD > end)
		return;
	seq = bpf_ntohl(*(__be32 *)(l4 + 4));
	off += (l4[12] >> 4) * 4;
	/* Acknowledgements and the like have nothing to read. */
	if (len > off && !socket_is_excluded(ctx))
		on_segment(ctx, off, len - off, seq);
}

SEC("cgroup_skb/ingress")
int answers_in(struct __sk_buff *ctx)
{
	/* Of the peer of the socket; zero if it has none, as with resolvers
	 * that use one socket for all servers. Nearly all packets end here.
	 */
	__be32 port = ctx->remote_port;

	if (!port || port == bpf_htonl(DNS_PORT))
		on_packet(ctx);
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
