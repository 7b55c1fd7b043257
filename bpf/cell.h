/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Cells of the ledger. The layout and the arithmetic are those of
 * policy/ledger: a test runs both on one cell.
 */
#ifndef EGRESS_CELL_H
#define EGRESS_CELL_H

#define CELL_HALF 1ULL    /* after a penalty one probe goes first */
#define CELL_PROBING 2ULL /* the probe is under way */

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
#define MAX_CAS 64

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

/* How far TAT may be ahead for cost units to be granted at once. */
static __always_inline __u64 cell_room(__u64 tolerance, __u64 interval, __u64 cost)
{
	__u64 more = cost > 1 ? (cost - 1) * interval : 0;

	return more < tolerance ? tolerance - more : 0;
}

/*
 * Takes cost units at now and reports whether they were granted: GCRA by
 * compare-and-swap. In any window of length d no more than burst + rate*d
 * units are granted, whoever takes from the cell here or in the daemon.
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
	for (int i = 0; i < MAX_CAS; i++) {
		__u64 tat, base, interval;

		if (now < READ_ONCE(c->open_until))
			break;
		tat = READ_ONCE(c->tat);
		base = tat > now ? tat : now;
		interval = READ_ONCE(c->interval);
		if (base - now > cell_room(READ_ONCE(c->tolerance), interval, cost))
			break;
		if (__sync_val_compare_and_swap(&c->tat, tat, base + cost * interval) == tat) {
			__sync_fetch_and_add(&c->granted, cost);
			return true;
		}
	}
	if (probe)
		__sync_fetch_and_and(&c->flags, ~CELL_PROBING);
	return false;
}

#endif
