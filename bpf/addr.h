/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Addresses: always 16 bytes in network order, IPv4 as ::ffff:a.b.c.d. */
#ifndef EGRESS_ADDR_H
#define EGRESS_ADDR_H

struct addr {
	union {
		__u8 bytes[16];
		__be32 words[4];
	};
};

#define MAPPED_PREFIX bpf_htonl(0x0000ffff)

/* Tokens are the addresses 127.TOKEN_NET.0.0/16. */
#define TOKEN_NET 101
#define TOKEN_BASE (127U << 24 | TOKEN_NET << 16)

static __always_inline bool addr_is_v4(const struct addr *a)
{
	return a->words[0] == 0 && a->words[1] == 0 && a->words[2] == MAPPED_PREFIX;
}

static __always_inline bool addr_is_zero(const struct addr *a)
{
	return (a->words[0] | a->words[1] | a->words[2] | a->words[3]) == 0;
}

static __always_inline void addr_from_v4(struct addr *a, __be32 v4)
{
	a->words[0] = 0;
	a->words[1] = 0;
	a->words[2] = MAPPED_PREFIX;
	a->words[3] = v4;
}

/* Loopback, link-local, and the unspecified address, which connect() takes for
 * loopback.
 */
static __always_inline bool addr_is_local(const struct addr *a)
{
	if (addr_is_v4(a)) {
		__u32 v4 = bpf_ntohl(a->words[3]);

		return v4 >> 24 == 127 || v4 >> 16 == 0xa9fe || v4 == 0;
	}
	if (a->words[0] == 0 && a->words[1] == 0 && a->words[2] == 0)
		return bpf_ntohl(a->words[3]) <= 1; /* :: and ::1 */
	return (bpf_ntohl(a->words[0]) & 0xffc00000) == 0xfe800000;
}

/* Multicast, broadcast, and what is reserved beside them. */
static __always_inline bool addr_is_group(const struct addr *a)
{
	if (addr_is_v4(a))
		return bpf_ntohl(a->words[3]) >= 0xe0000000;
	return a->bytes[0] == 0xff;
}

static __always_inline bool addr_is_token(const struct addr *a)
{
	return addr_is_v4(a) && (bpf_ntohl(a->words[3]) & 0xffff0000) == TOKEN_BASE;
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] &&
	       a->words[2] == b->words[2] && a->words[3] == b->words[3];
}

#endif
