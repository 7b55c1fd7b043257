/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the daemon is told. */
#ifndef SIGHT_EVENTS_H
#define SIGHT_EVENTS_H

enum kind {
	KIND_DATA = 1,
	KIND_HELLO,
	KIND_CLOSE,
};

struct event {
	__u64 time; /* CLOCK_MONOTONIC ns */
	__u64 began; /* of a call, as time */
	__u64 conn;
	__u64 cookie;
	__u64 seq;
	__u64 offset;
	__u32 pid;
	__u32 tid;
	__u32 total; /* bytes that the call moved */
	__u32 len;   /* bytes that follow the event */
	__u8 random[32];
	__u8 kind;
	__u8 dir;
	__u8 library;
	__u8 cookie_source;
	__u8 has_random;
	__u8 http2;
	__u8 pad[2];
};

/* Keeps the type in the object, from which Go's is generated. */
const struct event *event_type __attribute__((unused));

/* The daemon sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* A daemon that is awake looks by itself, every few milliseconds. */
static __always_inline __u64 wakeup(void)
{
	struct control *ctl = control_get();

	if (ctl && ctl->asleep && __sync_lock_test_and_set(&ctl->asleep, 0))
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

static __always_inline void event_fill(struct event *e, const struct conn_key *key,
				       const struct conn *c, __u8 kind)
{
	__u64 id = bpf_get_current_pid_tgid();

	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->conn = key->ptr;
	e->pid = key->tgid;
	/* A socket may go in somebody else's context. */
	e->tid = id >> 32 == key->tgid ? (__u32)id : 0;
	e->kind = kind;
	e->library = c->library;
	e->cookie = c->cookie;
	e->cookie_source = c->cookie_source;
	e->http2 = !!c->http2;
	e->has_random = c->has_random;
	__builtin_memcpy(e->random, c->random, sizeof(e->random));
}

/* Tells of something without data. */
static __always_inline void tell(const struct conn_key *key, struct conn *c, __u8 kind)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		count(TALLY_LOST);
		return;
	}
	event_fill(e, key, c, kind);
	c->spoke = kind != KIND_CLOSE;
	bpf_ringbuf_submit(e, wakeup());
	count(TALLY_EVENTS);
}

/* Tells that a connection ended, if the daemon heard of it. */
static __always_inline void tell_close(const struct conn_key *key, struct conn *c)
{
	if (!c->spoke)
		return;
	tell(key, c, KIND_CLOSE);
	count(TALLY_CLOSED);
}

/* What of a call is shown. */
struct shown {
	__u64 at; /* in the process */
	__u64 began;
	__u64 offset;
	__u32 total;
	__u32 len;
	__u8 dir;
	__u8 pad[7];
};

/* Tells of data of at most size bytes, in a record of that size: the ring
 * wants to know it beforehand.
 */
static __always_inline void tell_sized(const struct conn_key *key, const struct conn *c,
				       const struct shown *s, const __u32 size)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e) + size, 0);
	__u32 len = s->len;

	if (!e) {
		count(TALLY_LOST);
		return;
	}
	event_fill(e, key, c, KIND_DATA);
	e->dir = s->dir;
	e->began = s->began;
	e->seq = c->seq[s->dir & 1];
	e->offset = s->offset;
	e->total = s->total;
	/* Here, and not left out because callers have looked already: before Linux
	 * 6.8 the verifier forgets the bounds of a half register on the stack.
	 */
	barrier_var(len);
	if (len > size)
		len = size;
	if (bpf_probe_read_user(e + 1, len, (void *)s->at)) {
		count(TALLY_UNREAD);
		len = 0;
	}
	e->len = len;
	bpf_ringbuf_submit(e, wakeup());
	count(TALLY_EVENTS);
}

static __always_inline void tell_data(const struct conn_key *key, struct conn *c,
				      const struct shown *s)
{
	if (s->len <= 256)
		tell_sized(key, c, s, 256);
	else if (s->len <= 1024)
		tell_sized(key, c, s, 1024);
	else if (s->len <= 4096)
		tell_sized(key, c, s, 4096);
	else
		tell_sized(key, c, s, 16384);
	c->spoke = true;
	c->seq[s->dir & 1]++;
	count(TALLY_SOURCES + (c->has_random ? SOURCE_RANDOM : c->cookie_source & 3));
}

#endif
