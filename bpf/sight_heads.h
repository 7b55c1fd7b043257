/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What of the plaintext is shown: what can hold a head, nothing else. */
#ifndef SIGHT_HEADS_H
#define SIGHT_HEADS_H

#define MAX_HEAD 4096
#define MAX_FRAMES 16384

#define START 16 /* bytes that are looked at */

struct start {
	__u8 b[START];
	__u32 len;
};

/* The beginning of a response of HTTP/1, or of as much as there is. */
static __always_inline bool is_response(const struct start *s)
{
	const __u8 version[] = { 'H', 'T', 'T', 'P', '/', '1', '.' };

	for (__u32 i = 0; i < sizeof(version); i++) {
		if (i < s->len && s->b[i] != version[i])
			return false;
	}
	return true;
}

/* What a target begins with: a path, "*", or a whole URL. CONNECT has a host. */
static __always_inline bool is_target(const struct start *s, __u32 at)
{
	if (at >= s->len)
		return true;
	if (s->b[at] == '/' || s->b[at] == '*' || s->b[0] == 'C')
		return true;
	return s->b[at] == 'h' && (at + 1 >= s->len || s->b[at + 1] == 't');
}

/* The beginning of a request: a method, which is upper case in all that are
 * registered, a space and a target, or as much of it as there is.
 */
static __always_inline bool is_request(const struct start *s)
{
	for (__u32 i = 0; i < START - 2; i++) {
		if (i >= s->len)
			return true;
		if (s->b[i] == ' ')
			return i >= 3 && is_target(s, i + 1);
		if ((s->b[i] < 'A' || s->b[i] > 'Z') && s->b[i] != '-')
			return false;
	}
	return false;
}

/* RFC 9113 section 3.4 */
#define PREFACE 24

static __always_inline bool is_preface(const struct start *s)
{
	const __u8 preface[] = { 'P', 'R', 'I', ' ', '*', ' ', 'H', 'T', 'T', 'P', '/', '2' };

	if (s->len < sizeof(preface))
		return false;
	for (__u32 i = 0; i < sizeof(preface); i++) {
		if (s->b[i] != preface[i])
			return false;
	}
	return true;
}

/*
 * What a frame of HTTP/2 begins with (RFC 9113 section 6) and little else
 * does: HEADERS of a client's stream, or a frame of fixed length. For
 * connections that are older than the probes.
 */
static __always_inline bool is_frame(const struct start *s)
{
	__u32 length = s->b[0] << 16 | s->b[1] << 8 | s->b[2];
	__u32 stream = s->b[5] << 24 | s->b[6] << 16 | s->b[7] << 8 | s->b[8];

	if (s->len < 9)
		return false;
	switch (s->b[3]) {
	case 1: /* HEADERS */
		return length && length <= 16384 && !(s->b[4] & ~0x2d) && stream & 1 &&
		       !(stream >> 31);
	case 3: /* RST_STREAM */
		return length == 4 && !s->b[4] && stream & 1 && !(stream >> 31);
	case 4: /* SETTINGS */
		return length % 6 == 0 && length < 128 && !(s->b[4] & ~1) && !stream;
	case 6: /* PING */
		return length == 8 && !(s->b[4] & ~1) && !stream;
	case 8: /* WINDOW_UPDATE */
		return length == 4 && !s->b[4] && !(stream >> 31);
	}
	return false;
}

/* Bytes of a frame's header, RFC 9113 section 4.1. */
#define FRAME_HEADER 9
#define FRAME_DATA 0

/* What no sane frame has: whoever reads it has lost his place. */
#define FRAME_MAX_LENGTH (1 << 20)
#define FRAME_MAX_TYPE 32

/* A walk over the frames in a call's bytes. */
struct walk {
	struct frames *f;
	__u64 buf;
	__u32 n;
	__u32 at;
	__u32 header_end; /* behind the last header */
	__u32 pad;
};

static long walk_frame(__u32 round __attribute__((unused)), struct walk *w)
{
	struct frames *f = w->f;
	__u32 length;

	if (w->at >= w->n || f->lost)
		return 1;
	if (!f->have && w->n - w->at >= FRAME_HEADER) {
		f->lost = !!bpf_probe_read_user(f->header, FRAME_HEADER, (void *)(w->buf + w->at));
		f->have = FRAME_HEADER;
		w->at += FRAME_HEADER;
	}
	/* A header may come in two pieces or more. */
	for (__u32 i = 0; i < FRAME_HEADER && f->have < FRAME_HEADER && w->at < w->n; i++) {
		__u64 to = f->have;

		asm volatile("%0 &= 15" : "+r"(to));
		f->lost |= !!bpf_probe_read_user(&f->header[to], 1, (void *)(w->buf + w->at));
		f->have++;
		w->at++;
	}
	w->header_end = w->at;
	if (f->have < FRAME_HEADER || f->lost)
		return 1;
	f->have = 0;
	length = f->header[0] << 16 | f->header[1] << 8 | f->header[2];
	f->data = f->header[3] == FRAME_DATA;
	if (length > FRAME_MAX_LENGTH || f->header[3] > FRAME_MAX_TYPE) {
		f->lost = true;
		return 1;
	}
	if (length >= w->n - w->at) {
		f->left = length - (w->n - w->at);
		w->at = w->n;
		return 1;
	}
	w->at += length;
	return 0;
}

/*
 * Leaves out of a call's bytes what is the payload of DATA at the beginning
 * and at the end. Who reads the frames knows from their headers how much that
 * is.
 */
static __always_inline void trim_frames(struct conn *c, struct shown *s, __u32 n)
{
	struct frames *f = &c->frames[s->dir & 1];
	struct walk w = { .f = f, .buf = s->at, .n = n };
	bool data = f->data;

	s->len = n;
	if (f->lost)
		return;
	w.at = f->left < n ? f->left : n;
	f->left -= w.at;
	if (data) {
		s->at += w.at;
		s->offset += w.at;
		s->total -= w.at;
		s->len -= w.at;
	}
	if (w.at == n)
		return;
	bpf_loop(n, walk_frame, &w, 0);
	if (w.at < n)
		f->lost = true;
	else if (!f->lost && f->data && !f->have)
		s->len -= n - w.header_end;
}

/* Says which of the bytes that a call moved are shown, s->total from s->at on:
 * s->len of them, from where s is left.
 */
static __always_inline void choose(struct conn *c, struct shown *s)
{
	__u32 n = s->total, dir = s->dir & 1;
	struct start start = { .len = n };

	if (c->server)
		return;
	if (!c->http2 || !s->offset) {
		if (bpf_probe_read_user(start.b, n < START ? n & (START - 1) : START,
					(void *)s->at))
			return;
		if (is_preface(&start)) {
			c->http2 = true;
			c->server = dir == DIR_READ;
			/* Its rest passes like the payload of a frame. */
			c->frames[dir].left = PREFACE;
		}
		if (c->server)
			return;
	}
	if (!c->http2 && (dir == DIR_READ ? is_response(&start) : is_request(&start))) {
		c->http1 = true;
		c->budget[dir] = MAX_HEAD;
	}
	if (!c->http2 && !c->http1)
		c->http2 = is_frame(&start);
	if (c->http2) {
		trim_frames(c, s, n);
		if (s->len > MAX_FRAMES)
			s->len = MAX_FRAMES;
		return;
	}
	/* A head may come in pieces. */
	s->len = n < c->budget[dir] ? n : c->budget[dir];
	c->budget[dir] -= s->len;
}

#endif
