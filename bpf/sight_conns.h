/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TLS connections of processes, by the pointer that the process knows them by. */
#ifndef SIGHT_CONNS_H
#define SIGHT_CONNS_H

enum dir {
	DIR_READ,
	DIR_WRITE,
	DIR_NONE, /* of a handshake */
};

/* As package sight numbers them. */
enum library {
	LIBRARY_OPENSSL = 1,
};

/* The proof of a connection's socket, the weakest first. */
enum source {
	SOURCE_NONE,
	SOURCE_RECORD, /* the socket sent what the connection encrypted */
	SOURCE_FD,     /* SSL_set_fd */
	SOURCE_NESTED, /* used by a call of the connection before it returned */
	SOURCE_RANDOM, /* a ClientHello */
};

struct conn_key {
	__u64 ptr;
	__u32 tgid;
	__u32 pad;
};

/* Where one direction of HTTP/2 is. */
struct frames {
	__u32 left; /* bytes of the payload under way */
	__u8 data;  /* ... which is that of DATA */
	__u8 have;  /* bytes of the next header that came already */
	__u8 lost;  /* not known any more: all is shown */
	__u8 pad;
	__u8 header[16]; /* of which nine are used; a power of two for the verifier */
};

struct conn {
	__u64 process; /* process_id() of its owner */
	__u64 cookie;  /* of its socket, 0 = unknown or gone */
	__u64 last;    /* cookie of the last one that was known */
	__u64 sk;      /* its struct sock, only to ask sock_lives() */
	__u64 offset[2]; /* bytes of plaintext moved, by direction */
	__u64 seq[2];    /* events, by direction */
	__u32 budget[2]; /* bytes of a head yet to be shown, by direction */
	struct frames frames[2]; /* of HTTP/2, by direction */
	__s32 fd;        /* of SSL_set_fd while its socket has no cookie, else -1 */
	__u8 library;
	__u8 cookie_source;
	__u8 http1; /* a head was seen */
	__u8 http2;
	__u8 server; /* the process is the server: nothing is shown */
	__u8 has_random;
	__u8 spoke; /* the daemon knows of it */
	__u8 pad[5];
	__u8 random[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct conn_key);
	__type(value, struct conn);
} conns SEC(".maps");

/* Which connection a socket carries, by its cookie: to forget it when the
 * socket goes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct conn_key);
} owners SEC(".maps");

/* What tells a process, and each program that it executes, from one that gets
 * the same number later.
 */
static __always_inline __u64 process_id(void)
{
	struct task_struct___sight *task = (void *)bpf_get_current_task_btf();

	return task->group_leader->start_boottime ^ task->group_leader->self_exec_id << 48;
}

static __always_inline struct conn_key conn_key(__u64 ptr)
{
	struct conn_key key = { .ptr = ptr, .tgid = bpf_get_current_pid_tgid() >> 32 };

	return key;
}

static __always_inline void conn_clear(struct conn *c, __u64 process, __u8 library)
{
	__builtin_memset(c, 0, sizeof(*c));
	c->process = process;
	c->library = library;
	c->fd = -1;
}

/* The connection at ptr, which may be new, or NULL if there is no room. */
static __always_inline struct conn *conn_get(const struct conn_key *key, __u8 library)
{
	struct conn *c = bpf_map_lookup_elem(&conns, key);
	__u64 process = process_id();
	struct conn fresh;

	if (c) {
		if (c->process != process)
			conn_clear(c, process, library);
		return c;
	}
	conn_clear(&fresh, process, library);
	bpf_map_update_elem(&conns, key, &fresh, BPF_NOEXIST);
	c = bpf_map_lookup_elem(&conns, key);
	if (!c)
		count(TALLY_CROWDED);
	return c;
}

/* Forgets the socket of a connection. */
static __always_inline void conn_unlink(struct conn *c, const struct conn_key *key)
{
	struct conn_key *owner;
	__u64 cookie = c->cookie;

	if (!cookie)
		return;
	owner = bpf_map_lookup_elem(&owners, &cookie);
	if (owner && owner->ptr == key->ptr && owner->tgid == key->tgid)
		bpf_map_delete_elem(&owners, &cookie);
	c->cookie = 0;
	c->cookie_source = SOURCE_NONE;
}

/* Whether the socket of a connection is known, and open. */
static __always_inline bool conn_linked(struct conn *c, const struct conn_key *key)
{
	if (!c->cookie)
		return false;
	if (sock_lives((void *)c->sk, c->cookie))
		return true;
	conn_unlink(c, key);
	return false;
}

#endif
