/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel plane: budgets of connections, taken where connect() is called.
 *
 * What budgets ask for a destination is a set of rules. Each rule takes of one
 * lane; a connection goes when all have room for it. The lanes and their cells
 * are the daemon's as well: whoever comes first makes them.
 */
#ifndef EGRESS_PLANE_H
#define EGRESS_PLANE_H

#define MAX_RULES 4

/* Bits of plane_rule.flags. */
enum {
	RULE_DESTINATION = 1, /* tells lanes apart */
	RULE_EXIT = 2,        /* so does this */
	RULE_BY_NAME = 4,     /* the lane's destination is the name of the target */
	RULE_GUARD = 8,       /* takes nothing: see plane_guard */
	RULE_SHADOW = 16,     /* holds and refuses nothing */
	RULE_FAIL_CLOSED = 32,
	RULE_DROP = 64, /* what is refused looks as if nobody had answered */
	RULE_FAIR = 128, /* whose turn it is only the daemon knows */
};

struct plane_rule {
	__u64 interval;
	__u64 tolerance;
	__u64 max_wait; /* ns */
	__u32 max_queue;
	__u32 budget; /* id */
	__u32 flags;
	__u32 pad;
};

enum {
	SET_PROXY = 1, /* connections are the proxy's, and all rules are guards */
};

struct plane_set {
	__u32 flags;
	__u32 rules;
	struct plane_rule rule[MAX_RULES];
};

/* Sets by their id, which ports, prefixes and targets have. Never changed: what
 * changes is another set.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct plane_set);
} plane_sets SEC(".maps");

#define ALL_EXITS (~0U)

struct plane_key {
	struct addr dest; /* zero: the lane is not one destination's, or one that has a name */
	__u32 name;
	__u32 budget;
	__u32 exit; /* ALL_EXITS: the lane is not one exit's */
	__u32 pad;
};

/* The cells of lanes, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct plane_key);
	__type(value, __u32);
} plane_lanes SEC(".maps");

/* Cells for lanes that are made here. The daemon fills up. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);
	__type(value, __u32);
} plane_spares SEC(".maps");

/* A connection, as far as rules look at it, and how far its decision is. All
 * of it is in memory that the verifier does not follow: what it cannot tell
 * apart it need not look at twice.
 */
struct plane_call {
	struct addr dest;
	__u32 name;
	__u32 exit;
	/* When all lanes have room that were looked at; of one that is held, when
	 * it goes.
	 */
	__u64 turn;
	__u32 hold; /* HOLD_* */
	__u32 last; /* cell that has room last */
	__u32 cells[MAX_RULES]; /* by rule; 0: there is none */
	__u64 tats[MAX_RULES];  /* left behind by what was taken */
	__u64 spans[MAX_RULES - 1]; /* by which that was moved; of the last none is given back */
};

/* What becomes of a connection. */
enum {
	ADMIT_GRANTED, /* goes at once */
	ADMIT_HELD,    /* goes at its turn */
	ADMIT_REFUSED, /* would wait too long */
	ADMIT_DROPPED, /* the same, and the client shall not be told so plainly */
	ADMIT_ASK,     /* the proxy has to hold it */
	ADMIT_FULL,    /* there is no room for a lane of it */
};

/* What there is to hold a connection with. */
enum {
	HOLD_PACED = 1, /* fq on the way out: the SYN can be given a time */
	HOLD_PROXY = 2, /* the daemon, which may have a queue as well */
	HOLD_NOT = 4,   /* shifted left by its number: the rule only measures */
};

/* Makes the lane that is missing. Returns the number of its cell, or 0. */
static __always_inline __u32 plane_make(const struct plane_rule *rule, const struct plane_key *key)
{
	struct control *ctl = control_get();
	struct cell *cell;
	__u32 n, *have;

	if (!ctl || bpf_map_pop_elem(&plane_spares, &n))
		return 0;
	cell = bpf_map_lookup_elem(&ledger, &n);
	if (!cell)
		return 0;
	/* Before anybody can find it. */
	cell->interval = rule->interval;
	cell->base_interval = rule->interval;
	cell->tolerance = rule->tolerance;
	if (bpf_map_update_elem(&plane_lanes, key, &n, BPF_NOEXIST) == 0) {
		__sync_fetch_and_add(&ctl->plane_made, 1);
		return n;
	}
	bpf_map_push_elem(&plane_spares, &n, 0);
	have = bpf_map_lookup_elem(&plane_lanes, key);
	return have ? *have : 0;
}

/* The number of the cell of the rule's lane for the call, or 0, which is
 * nobody's.
 */
static __always_inline __u32 plane_cell(const struct plane_rule *rule, const struct plane_call *c,
					bool make)
{
	struct plane_key key = {
		.budget = rule->budget,
		.exit = rule->flags & RULE_EXIT ? c->exit : ALL_EXITS,
	};
	__u32 *n;

	if (rule->flags & RULE_DESTINATION) {
		if (rule->flags & RULE_BY_NAME)
			key.name = c->name;
		else
			key.dest = c->dest;
	}
	/* Before 6.3 a key has to be on the stack, or in a map. */
	n = bpf_map_lookup_elem(&plane_lanes, &key);
	if (n)
		return *n;
	return make ? plane_make(rule, &key) : 0;
}

static __always_inline int rule_refusal(const struct plane_rule *rule)
{
	return rule->flags & RULE_DROP ? ADMIT_DROPPED : ADMIT_REFUSED;
}

/* Whether the rule lets nobody wait that long. */
static __always_inline bool rule_exceeded(const struct plane_rule *rule, const struct cell *cell,
					  __u64 wait)
{
	__u64 interval = READ_ONCE(cell->interval);

	if (!wait)
		return false;
	if (wait > rule->max_wait)
		return true;
	return interval && wait / interval > rule->max_queue;
}

static __always_inline void cell_count(__u32 number, bool refused)
{
	struct cell *cell = bpf_map_lookup_elem(&ledger, &number);

	if (cell)
		__sync_fetch_and_add(refused ? &cell->refused : &cell->held, 1);
}

/* Looks at the lane of a rule. ADMIT_GRANTED: nothing speaks against waiting
 * until c->turn.
 */
__noinline int rule_look(struct plane_rule *rule, struct plane_call *c, __u32 i, __u64 now)
{
	struct cell *cell;
	__u32 number;
	__u64 at;

	if (!rule || !c || i >= MAX_RULES)
		return ADMIT_FULL;
	number = plane_cell(rule, c, true);
	cell = bpf_map_lookup_elem(&ledger, &number);
	if (!number || !cell)
		return ADMIT_FULL;
	if (rule->flags & RULE_SHADOW) {
		c->cells[i] = number;
		c->hold |= HOLD_NOT << i;
		return ADMIT_GRANTED;
	}
	/* Those who wait go first, and a probe's answer is only heard by the
	 * proxy.
	 */
	if (c->hold & HOLD_PROXY && READ_ONCE(cell->flags) & (CELL_HALF | CELL_QUEUED))
		return ADMIT_ASK;
	at = cell_ready(cell, now);
	if (rule_exceeded(rule, cell, at - now)) {
		cell_count(number, true);
		return rule_refusal(rule);
	}
	if (at > now && rule->flags & RULE_FAIR)
		c->hold &= ~HOLD_PACED;
	if (at > c->turn) {
		c->turn = at;
		c->last = number;
	}
	c->cells[i] = number;
	return ADMIT_GRANTED;
}

/* By number. 0 is no cell. */
__noinline __u64 cells_take(__u32 number, __u64 now, __u64 *span)
{
	return number ? cell_take(bpf_map_lookup_elem(&ledger, &number), now, 1, span) : 0;
}

/* 0 has room for everybody. */
__noinline __u64 cells_reserve(__u32 number, __u64 at, __u64 *mine)
{
	return number ? cell_reserve(bpf_map_lookup_elem(&ledger, &number), at, mine) : at;
}

/* The cell that the call takes of for rule i, or 0. */
static __always_inline __u32 plane_holds(const struct plane_call *c, __u32 i)
{
	return c->hold & HOLD_NOT << i ? 0 : c->cells[i];
}

/* Takes one unit of each now, or nothing. */
static __always_inline bool plane_take(struct plane_call *c, __u64 now)
{
	bool all = true;

	for (__u32 i = 0; i < MAX_RULES; i++) {
		__u64 *span = i < MAX_RULES - 1 ? &c->spans[i] : NULL;
		__u32 number = plane_holds(c, i);

		c->tats[i] = 0;
		if (!all || !number)
			continue;
		c->tats[i] = cells_take(number, now, span);
		all = c->tats[i];
	}
	if (all)
		return true;
	for (__u32 i = 0; i < MAX_RULES - 1; i++) {
		__u32 number = plane_holds(c, i);
		struct cell *cell = bpf_map_lookup_elem(&ledger, &number);

		if (number && c->tats[i] && cell)
			cell_undo(cell, c->tats[i], c->spans[i]);
		c->tats[i] = 0;
	}
	return false;
}

/* Each round puts the turn off only where others took in between. */
#define MAX_ROUNDS 4

/*
 * Takes one unit of each for one time to come, at or after turn, and returns
 * it; 0 if others were always faster. Where one lane has room only later than
 * the ones before it, those are asked again: in each of them the unit counts
 * from when the connection goes.
 */
__noinline __u64 plane_reserve(struct plane_call *c, __u64 turn)
{
	if (!c)
		return 0;
	for (__u32 round = 0; round < MAX_ROUNDS; round++) {
		__u64 first = 0;

		for (__u32 i = 0; i < MAX_RULES; i++) {
			turn = cells_reserve(plane_holds(c, i), turn, &c->tats[i]);
			if (!turn)
				return 0;
			if (!i)
				first = turn;
		}
		if (turn == first)
			return turn;
	}
	return 0;
}

/*
 * Decides one connection by the rules of a set that is the kernel's. c->hold
 * says what could hold it; where nothing can, the answer may still be
 * ADMIT_ASK.
 */
__noinline int plane_admit(struct plane_set *set, struct plane_call *c)
{
	__u64 now = bpf_ktime_get_ns(), turn = 0;
	struct control *ctl = control_get();

	if (!set || !c || !ctl)
		return ADMIT_FULL;
	c->turn = now;
	for (__u32 i = 0; i < MAX_RULES && i < set->rules; i++) {
		int answer = rule_look(&set->rule[i], c, i, now);

		if (answer != ADMIT_GRANTED)
			return answer;
	}
	if (c->turn > now || !plane_take(c, now)) {
		if (!(c->hold & HOLD_PACED) || c->turn - now > READ_ONCE(ctl->pace_limit))
			return ADMIT_ASK;
		turn = plane_reserve(c, c->turn);
		if (!turn)
			return ADMIT_ASK;
		if (c->last)
			cell_count(c->last, false);
	}
	for (__u32 i = 0; i < MAX_RULES; i++) {
		if (c->hold & HOLD_NOT << i && !cells_take(c->cells[i], now, NULL))
			cell_count(c->cells[i], false);
	}
	c->turn = turn;
	return turn > now ? ADMIT_HELD : ADMIT_GRANTED;
}

/* Until when the rule's lane is closed for a connection that takes nothing. */
__noinline __u64 rule_closed(struct plane_rule *rule, struct plane_call *c)
{
	struct cell *cell;
	__u32 number;

	if (!rule || !c || rule->flags & RULE_SHADOW)
		return 0;
	/* Nobody would open the lane again, nor know that it has been. */
	if (!(c->hold & HOLD_PROXY) && !(rule->flags & RULE_FAIL_CLOSED))
		return 0;
	number = plane_cell(rule, c, false);
	cell = bpf_map_lookup_elem(&ledger, &number);
	if (!number || !cell)
		return 0;
	c->last = number;
	return READ_ONCE(cell->open_until);
}

/*
 * Decides one connection that goes around the proxy: it stays away while a lane
 * is closed that it falls in. It takes nothing. The answer is ADMIT_GRANTED
 * where no lane is closed, and ADMIT_HELD where that is all that there is to
 * wait for.
 */
__noinline int plane_guard(struct plane_set *set, struct plane_call *c)
{
	__u64 now = bpf_ktime_get_ns();
	struct control *ctl = control_get();
	int refusal = ADMIT_GRANTED;

	if (!set || !c || !ctl)
		return ADMIT_GRANTED;
	c->turn = now;
	for (__u32 i = 0; i < MAX_RULES && i < set->rules; i++) {
		struct plane_rule *rule = &set->rule[i];
		__u64 open = rule_closed(rule, c);

		if (open <= c->turn)
			continue;
		c->turn = open;
		refusal = rule_refusal(rule);
		if (rule->flags & RULE_FAIR || open - now > rule->max_wait)
			c->hold &= ~HOLD_PACED;
	}
	if (refusal == ADMIT_GRANTED)
		return ADMIT_GRANTED;
	if (c->hold & HOLD_PACED && c->turn - now <= READ_ONCE(ctl->pace_limit)) {
		cell_count(c->last, false);
		return ADMIT_HELD;
	}
	cell_count(c->last, true);
	return refusal;
}

#endif
