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
 * Returns the TAT that it left behind, or 0 if nothing was granted.
 *
 * The functions with loops are global: the verifier looks at each once, not
 * once for each way that leads to it.
 */
__noinline __u64 cell_take(struct cell *c, __u64 now, __u64 cost)
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
			return base;
		}
	}
	return 0;
}

/* Gives back the one unit that left tat behind and went nowhere, if nobody
 * took another since: then no window exceeds its bound by it. Else it is lost.
 */
static __always_inline void cell_undo(struct cell *c, __u64 tat)
{
	__sync_fetch_and_add(&c->granted, -1);
	/* Where the pace has become slower since, so has the TAT become later. */
	__sync_val_compare_and_swap(&c->tat, tat, tat - READ_ONCE(c->interval));
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

/* Takes one unit for the first time, from at on, that is free. Returns that
 * time, or 0 if others were always faster.
 */
__noinline __u64 cell_reserve(struct cell *c, __u64 at)
{
	if (!c)
		return 0;
	for (int i = 0; i < MAX_CAS; i++) {
		__u64 tat = READ_ONCE(c->tat);
		__u64 turn = cell_ready(c, at);
		__u64 base = tat > turn ? tat : turn;

		if (__sync_val_compare_and_swap(&c->tat, tat, base + READ_ONCE(c->interval)) ==
		    tat) {
			__sync_fetch_and_add(&c->granted, 1);
			return turn;
		}
	}
	return 0;
}

/* A unit that was reserved goes later, at turn: the next one waits for it. */
__noinline int cell_postpone(struct cell *c, __u64 turn)
{
	__u64 least;

	if (!c)
		return 0;
	least = turn + READ_ONCE(c->interval);
	for (int i = 0; i < MAX_CAS; i++) {
		__u64 tat = READ_ONCE(c->tat);

		if (tat >= least || __sync_val_compare_and_swap(&c->tat, tat, least) == tat)
			break;
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
	if (cell_take(c, now, cost))
		return true;
	if (probe)
		__sync_fetch_and_and(&c->flags, ~CELL_PROBING);
	return false;
}

#endif
