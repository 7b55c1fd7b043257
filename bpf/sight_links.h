/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How a connection comes to its socket. There is a proof or there is no
 * socket: what another thread or call did lately is none.
 */
#ifndef SIGHT_LINKS_H
#define SIGHT_LINKS_H

/* A pointer that turns out to be another connection than before. */
static __always_inline void conn_restart(struct conn *c, const struct conn_key *key)
{
	tell_close(key, c);
	conn_unlink(c, key);
	conn_clear(c, c->process, c->library);
}

/* Notes the socket of a connection, with its proof. */
static __always_inline void conn_link(struct conn *c, const struct conn_key *key, __u64 sk,
				      __u64 cookie, __u8 source)
{
	if (!cookie)
		return;
	if (c->last && c->last != cookie)
		conn_restart(c, key);
	c->last = cookie;
	c->sk = sk;
	c->fd = -1;
	if (c->cookie != cookie) {
		c->cookie = cookie;
		bpf_map_update_elem(&owners, &cookie, key, BPF_ANY);
	}
	if (c->cookie_source < source)
		c->cookie_source = source;
}

/* A socket whose cookie was not there yet when SSL_set_fd gave it. */
static __always_inline void conn_link_late(struct conn *c, const struct conn_key *key)
{
	struct sock___sight *sk;

	if (c->fd < 0 || c->cookie)
		return;
	sk = sock_of_fd(c->fd);
	if (sk)
		conn_link(c, key, (__u64)sk, sock_cookie(sk), SOURCE_FD);
}

enum {
	TLS_HANDSHAKE = 22,
	TLS_DATA = 23,
	TLS_CLIENT_HELLO = 1,
	TLS_SERVER_HELLO = 2,
	TLS_HEADER = 5, /* bytes, RFC 8446 section 5.1 */
};

/*
 * How many bytes of a record tell it from every other. The shortest one with
 * data has 22 or more; after the header come at least nine encrypted bytes,
 * whatever the cipher, and of a ClientHello eleven of its random.
 */
#define RECORD_PREFIX 22

struct record_key {
	__u8 bytes[RECORD_PREFIX];
	__u16 pad;
	__u32 tgid;
	__u32 pad2;
};

struct record {
	struct conn_key conn;
	__u64 process;
};

/* Records that a connection without a socket wrote: who sends one is it. LRU:
 * one lost early is a proof less.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct record_key);
	__type(value, struct record);
} records SEC(".maps");

/* Processes of which a socket call without a TLS call around it may tell
 * something. LRU: they come again with their next call.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u8);
} watched SEC(".maps");

enum {
	WATCH_GO = 1,      /* its calls are noted by goroutine */
	WATCH_RECORDS = 2, /* it writes records to memory and sends them later */
};

static __always_inline void watch(__u32 tgid, __u8 why)
{
	__u8 *old = bpf_map_lookup_elem(&watched, &tgid);

	if (old) {
		if (!(*old & why))
			*old |= why;
		return;
	}
	bpf_map_update_elem(&watched, &tgid, &why, BPF_ANY);
}

/*
 * The client random of a ClientHello that stands whole in one record (RFC 8446
 * sections 4 and 5.1), or NULL. An encrypted record cannot pass for one except
 * with a chance of 2^-40.
 */
#define HELLO_PREFIX (TLS_HEADER + 4 + 2 + 32)

static __always_inline const __u8 *hello_random(const __u8 *b)
{
	__u32 record = b[3] << 8 | b[4];
	__u32 body = b[6] << 16 | b[7] << 8 | b[8];

	if (b[0] != TLS_HANDSHAKE || b[1] != 3 || b[5] != TLS_CLIENT_HELLO)
		return NULL;
	if (record < HELLO_PREFIX - TLS_HEADER || body + 4 != record || b[9] != 3)
		return NULL;
	return b + TLS_HEADER + 6;
}

static __always_inline bool same_random(const __u8 *a, const __u8 *b)
{
	for (int i = 0; i < 32; i++) {
		if (a[i] != b[i])
			return false;
	}
	return true;
}

/* A connection writes bytes of the wire, maybe to memory. Returns whether they
 * are a record whose sender will be known.
 */
static __always_inline bool on_wire(struct conn *c, const struct conn_key *key, __u64 at, __u32 len)
{
	struct record_key rec = { .tgid = key->tgid };
	struct record value = { .conn = *key, .process = c->process };
	__u8 b[HELLO_PREFIX] = {};
	const __u8 *random;

	if (len < RECORD_PREFIX)
		return false;
	if (bpf_probe_read_user(b, len < HELLO_PREFIX ? RECORD_PREFIX : HELLO_PREFIX, (void *)at))
		return false;
	random = len < HELLO_PREFIX ? NULL : hello_random(b);
	if (random && !(c->has_random && same_random(c->random, random))) {
		/* Not so after a HelloRetryRequest, where the random stays, nor for
		 * the next of several BIOs that the record goes through.
		 */
		if (c->spoke || c->offset[DIR_READ] || c->offset[DIR_WRITE])
			conn_restart(c, key);
		__builtin_memcpy(c->random, random, sizeof(c->random));
		c->has_random = true;
		tell(key, c, KIND_HELLO);
	}
	if (!random && b[0] == TLS_HANDSHAKE && b[5] == TLS_SERVER_HELLO && !c->has_random)
		c->server = true;
	if (!random && (b[0] != TLS_DATA || b[1] != 3))
		return false;
	if (conn_linked(c, key))
		return true;
	__builtin_memcpy(rec.bytes, b, RECORD_PREFIX);
	bpf_map_update_elem(&records, &rec, &value, BPF_ANY);
	watch(key->tgid, WATCH_RECORDS);
	return true;
}

/* A socket sent what stands at that address: is it a record of ours? */
static __always_inline void on_sent(__u64 sk, __u64 cookie, __u64 at)
{
	struct record_key rec = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct record *found;
	struct conn *c;

	if (!at || bpf_probe_read_user(rec.bytes, RECORD_PREFIX, (void *)at))
		return;
	if (rec.bytes[1] != 3 || (rec.bytes[0] != TLS_DATA && rec.bytes[0] != TLS_HANDSHAKE))
		return;
	found = bpf_map_lookup_elem(&records, &rec);
	if (!found)
		return;
	c = bpf_map_lookup_elem(&conns, &found->conn);
	if (c && c->process == found->process)
		conn_link(c, &found->conn, sk, cookie, SOURCE_RECORD);
	bpf_map_delete_elem(&records, &rec);
}

#endif
