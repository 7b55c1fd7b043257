/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Cells of the ledger. The layout and the arithmetic are those of
 * policy/ledger: a test runs both on one cell.
 */
#ifndef EGRESS_CELL_H
#define EGRESS_CELL_H

#define CELL_HALF 1ULL    /* after a penalty one probe goes first */
#define CELL_PROBING 2ULL /* the probe is under way */
#define CELL_QUEUED 4ULL  /* somebody waits in the daemon's queue */

/* Times are CLOCK_MONOTONIC ns. */
struct cell {
	__u64 tat;
	__u64 open_until;
	__u64 interval;
	__u64 tolerance;
	__u64 epoch;
	__u64 flags;
	__u64 base_interval;
	__u64 granted;
	__u64 held;
	__u64 refused;
	__u64 limited;
	__u64 window[3]; /* the daemon's */
	__u64 pad[2];
};

/* Mapped by the daemon; pinned, so cooldowns survive it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct cell);
} ledger SEC(".maps");

/* A failed compare-and-swap means that somebody else succeeded, so this many
 * in a row do not happen; the verifier wants a bound.
 */
#define MAX_CAS 32

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

/* How far TAT may be ahead for cost units to be granted at once. */
static __always_inline __u64 cell_room(__u64 tolerance, __u64 interval, __u64 cost)
{
	__u64 more = cost > 1 ? (cost - 1) * interval : 0;

	return more < tolerance ? tolerance - more : 0;
}

/*
 * Takes cost units at now, if pace and cooldown allow it: GCRA by
 * compare-and-swap. In any window of length d no more than burst + rate*d
 * units are granted, whoever takes from the cell here or in the daemon.
 * Returns the TAT that it left behind, or 0 if nothing was granted, and puts
 * into span by how much an interval moved it.
 *
 * The functions with loops are global: the verifier looks at each once, not
 * once for each way that leads to it.
 */
__noinline __u64 cell_take(struct cell *c, __u64 now, __u64 cost, __u64 *span)
{
	if (!c)
		return 0;
	for (int i = 0; i < MAX_CAS; i++) {
		__u64 tat, base, interval;

		if (now < READ_ONCE(c->open_until))
			return 0;
		tat = READ_ONCE(c->tat);
		base = tat > now ? tat : now;
		interval = READ_ONCE(c->interval);
		if (base - now > cell_room(READ_ONCE(c->tolerance), interval, cost))
			return 0;
		base += cost * interval;
		if (__sync_val_compare_and_swap(&c->tat, tat, base) == tat) {
			__sync_fetch_and_add(&c->granted, cost);
			if (span)
				*span = cost * interval;
			return base;
		}
	}
	return 0;
}

/* The TAT of a bucket that the last cooldown emptied. */
static __always_inline __u64 cell_emptied(const struct cell *c)
{
	return READ_ONCE(c->open_until) + READ_ONCE(c->tolerance);
}

/* Gives back the one unit that left tat behind, span later than it was, and went
 * nowhere, if nobody took another since: then no window exceeds its bound by it.
 * Else it is lost. The present interval says nothing: the pace may have changed
 * since. giveBack in policy/ledger is the twin, and says why it is done so.
 */
static __always_inline void cell_undo(struct cell *c, __u64 tat, __u64 span)
{
	__u64 before = tat - span;
	__u64 least = cell_emptied(c);

	__sync_fetch_and_add(&c->granted, -1);
	if (before < least)
		before = least;
	if (before >= tat || __sync_val_compare_and_swap(&c->tat, tat, before) != tat)
		return;
	least = cell_emptied(c);
	if (least > tat)
		least = tat;
	if (least > before)
		__sync_val_compare_and_swap(&c->tat, before, least);
}

/* From when on pace and cooldown allow one unit, but not before at. */
static __always_inline __u64 cell_ready(const struct cell *c, __u64 at)
{
	__u64 tat = READ_ONCE(c->tat);
	__u64 tolerance = READ_ONCE(c->tolerance);
	__u64 open = READ_ONCE(c->open_until);
	__u64 ready = tat > tolerance ? tat - tolerance : 0;

	if (ready < open)
		ready = open;
	return ready > at ? ready : at;
}

/*
 * Has one unit for the first time, from at on, that is free, and returns that
 * time; 0 if others were always faster. mine is the TAT that the unit left
 * behind which the caller has already, for an earlier time, or 0, and becomes
 * that of the unit that it has now.
 *
 * What keeps the bound: the unit of each that goes at t has left behind a TAT of
 * t + interval or more, but no more than tolerance above that, and TATs of any
 * two are an interval apart. So a unit that is early enough in the row goes
 * later as it is. Else it moves to the later time, in the same swap that sees
 * that it is the last in the row. If others are behind it, it is lost, and
 * another is taken: to put them off is too late, as they may have gone.
 */
__noinline __u64 cell_reserve(struct cell *c, __u64 at, __u64 *mine)
{
	__u64 have;

	if (!c || !mine)
		return 0;
	have = *mine;
	for (int i = 0; i < MAX_CAS; i++) {
		__u64 tat = READ_ONCE(c->tat);
		__u64 turn = at;
		__u64 next = at + READ_ONCE(c->interval);

		if (have >= next)
			return at;
		if (!have || tat != have) {
			turn = cell_ready(c, at);
			next = (tat > turn ? tat : turn) + READ_ONCE(c->interval);
		}
		if (__sync_val_compare_and_swap(&c->tat, tat, next) != tat)
			continue;
		if (!have) /* what was lost is not sent, what replaces it is */
			__sync_fetch_and_add(&c->granted, 1);
		*mine = next;
		return turn;
	}
	return 0;
}

/* Takes cost units at now and reports whether they were granted; after a
 * penalty only as the probe.
 */
static __always_inline bool cell_acquire(struct cell *c, __u64 now, __u64 cost)
{
	__u64 flags = READ_ONCE(c->flags);
	bool probe = false;

	if (flags & CELL_HALF) {
		if (flags & CELL_PROBING ||
		    __sync_val_compare_and_swap(&c->flags, flags, flags | CELL_PROBING) != flags)
			return false;
		probe = true;
	}
	if (cell_take(c, now, cost, NULL))
		return true;
	if (probe)
		__sync_fetch_and_and(&c->flags, ~CELL_PROBING);
	return false;
}

#endif
