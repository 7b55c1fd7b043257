/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Calls of TLS functions that have not returned yet. They nest: a callback of
 * a read may write, and TLS in TLS writes within a write. Threads of C keep
 * theirs in a stack of their own, goroutines too, since they change threads.
 */
#ifndef SIGHT_CALLS_H
#define SIGHT_CALLS_H

/* How a function gives the length that it moved. */
enum form {
	FORM_INT,  /* returns an int */
	FORM_LONG, /* returns a word */
	FORM_EX,   /* returns 1, and the length through a pointer */
};

struct call {
	__u64 conn;
	__u64 buf;
	__u64 length_at; /* of FORM_EX */
	__u64 sp;        /* at the first instruction */
	__u64 began;     /* ns */
	__u64 cookie;    /* of the socket that was used meanwhile, 0 = none */
	__u64 sk;        /* that socket's struct sock */
	__u64 moved;     /* bytes of that socket */
	__u32 want;  /* bytes that were asked for */
	__u8 dir;
	__u8 form;
	__u8 library;
	__u8 flags;
};

enum {
	CALL_MIXED = 1,   /* more than one socket was used */
	CALL_RECORD = 2,  /* it wrote a record: who sends that is the socket */
	CALL_CARRIED = 4, /* the socket is that of a connection below it */
};

#define MAX_CALLS 4

struct calls {
	__u32 depth;
	__u32 pad;
	struct call at[MAX_CALLS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __s32);
	__type(value, struct calls);
} thread_calls SEC(".maps");

/* Room for the goroutines that wait in a read, above all. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct conn_key); /* ptr is the goroutine */
	__type(value, struct calls);
} goroutine_calls SEC(".maps");

static __always_inline struct calls *calls_of_thread(__u64 flags)
{
	return bpf_task_storage_get(&thread_calls, bpf_get_current_task_btf(), NULL, flags);
}

/* The i-th call. The mask is for the verifier: before Linux 6.8 it does not see
 * that the copy of a half register has the bounds of what it was copied from. The
 * barrier is for the compiler, which would leave out a mask that changes nothing.
 */
static __always_inline struct call *call_at(struct calls *calls, __u32 i)
{
	barrier_var(i);
	return &calls->at[i & (MAX_CALLS - 1)];
}

static __always_inline struct call *call_innermost(struct calls *calls)
{
	__u32 depth = calls->depth;

	return depth ? call_at(calls, depth - 1) : NULL;
}

static __always_inline void call_push(struct calls *calls, const struct call *c, bool go)
{
	struct call *top;

	/* Stacks of C grow downwards: a frame that is not above this one is gone,
	 * by a jump over it or since the probe of its return was taken off.
	 */
	for (int i = 0; i < MAX_CALLS && !go; i++) {
		top = call_innermost(calls);
		if (!top || top->sp > c->sp)
			break;
		calls->depth--;
	}
	top = call_innermost(calls);
	/* A function that is a thin cover of another, or one of Go that begins
	 * again because its stack had to grow: one call.
	 */
	if (top && top->conn == c->conn && top->dir == c->dir && top->buf == c->buf) {
		*top = *c;
		return;
	}
	if (calls->depth >= MAX_CALLS) {
		count(TALLY_MISSED);
		if (!go)
			return;
		calls->depth = 0; /* left behind by panics */
	}
	*call_at(calls, calls->depth) = *c;
	calls->depth++;
}

/* Notes that the innermost call used a socket. */
static __always_inline void call_note(struct call *c, __u64 sk, __u64 cookie, __u64 moved)
{
	if (c->cookie && c->cookie != cookie)
		c->flags |= CALL_MIXED;
	c->sk = sk;
	c->cookie = cookie;
	c->moved += moved;
}

/* Takes the call that returns now: of Go by direction, of C by its frame, whose
 * return address x86 has popped already. Returns false if it is not known.
 */
static __always_inline bool call_pop(struct calls *calls, struct call *out, __u64 sp, __u8 dir,
				     bool go)
{
	for (int i = MAX_CALLS - 1; i >= 0; i--) {
		struct call *c = &calls->at[i];

		if ((__u32)i >= calls->depth || c->dir != dir)
			continue;
		if (!go && sp - c->sp > sizeof(sp))
			continue;
		*out = *c;
		calls->depth = i;
		/* TLS in TLS: what carries the inner one carries both. */
		if (i > 0 && out->cookie && calls->at[i - 1].dir == dir) {
			call_note(&calls->at[i - 1], out->sk, out->cookie, out->moved);
			calls->at[i - 1].flags |= CALL_CARRIED;
		}
		return true;
	}
	return false;
}

#endif
