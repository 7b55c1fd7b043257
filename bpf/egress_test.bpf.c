/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Functions of the headers for tests to call: cgroup programs cannot be run
 * without a socket, these can. Not part of the daemon.
 */
#include "egress.bpf.c"

struct addr_case {
	struct addr addr;
	__u32 v4;
	__u32 local;
	__u32 token;
	__u32 zero;
	__u32 group;
};

SEC("syscall")
int test_addr(struct addr_case *c)
{
	struct addr a = c->addr;

	c->v4 = addr_is_v4(&a);
	c->local = addr_is_local(&a);
	c->token = addr_is_token(&a);
	c->zero = addr_is_zero(&a);
	c->group = addr_is_group(&a);
	return 0;
}

struct named_case {
	struct addr dest;
	__u32 port;
	__u32 named;
	__u32 set;
	__u32 name;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct named_case);
} named_cases SEC(".maps");

/* A classifier, because syscall programs may not search a trie. Its packet
 * means nothing.
 */
SEC("tc")
int test_named(void *ctx __attribute__((unused)))
{
	struct control *ctl = control_get();
	__u32 zero = 0;
	struct named_case *c = bpf_map_lookup_elem(&named_cases, &zero);
	struct target target = {};
	struct addr dest;

	if (!ctl || !c)
		return 0;
	dest = c->dest;
	c->named = destination_named(ctl, &dest, c->port, &target);
	c->set = target.set;
	c->name = target.name;
	return 0;
}

struct area_case {
	struct addr addr;
	__u32 known;
};

SEC("syscall")
int test_area(struct area_case *c)
{
	struct addr a = c->addr;

	c->known = in_known_area(&a);
	return 0;
}

struct exit_case {
	struct exit_traits traits;
	struct addr dest;
	__u32 port;
	__u32 exit; /* by traits */
	__u32 behind; /* the endpoint at dest and port */
	__u32 rebind;
};

SEC("syscall")
int test_exit(struct exit_case *c)
{
	struct control *ctl = control_get();
	struct exit_traits traits = c->traits;
	struct addr dest = c->dest;
	struct exit_rule *rule;

	if (!ctl)
		return 0;
	c->exit = exit_of(ctl, &traits);
	c->behind = exit_of_endpoint(ctl, &dest, c->port);
	rule = exit_of_device(&traits);
	c->rebind = rule && rule->rebind;
	return 0;
}

struct acquire_case {
	__u64 now;
	__u64 cost;
	__u32 cell;
	__u32 granted;
};

SEC("syscall")
int test_acquire(struct acquire_case *c)
{
	__u32 index = c->cell;
	struct cell *cell = bpf_map_lookup_elem(&ledger, &index);

	if (cell)
		c->granted = cell_acquire(cell, c->now, c->cost);
	return 0;
}

/* A unit that is taken, given back, or reserved: the step that the case says. */
enum {
	STEP_TAKE,
	STEP_UNDO,
	STEP_RESERVE,
};

struct step_case {
	__u32 cell;
	__u32 step;
	__u64 at;
	__u64 tat; /* what the unit left behind; 0: there is none */
	__u64 span;
	__u64 turn; /* of a unit that was reserved */
};

SEC("syscall")
int test_step(struct step_case *c)
{
	__u32 index = c->cell;
	struct cell *cell = bpf_map_lookup_elem(&ledger, &index);
	__u64 tat = c->tat, span = c->span;

	if (!cell)
		return 0;
	switch (c->step) {
	case STEP_TAKE:
		tat = cell_take(cell, c->at, 1, &span);
		break;
	case STEP_UNDO:
		cell_undo(cell, tat, span);
		break;
	case STEP_RESERVE:
		c->turn = cell_reserve(cell, c->at, &tat);
		break;
	}
	c->tat = tat;
	c->span = span;
	return 0;
}

struct spin {
	__u32 cell;
	__u32 rounds;
	__u64 granted;
};

static long spin_once(__u32 round __attribute__((unused)), struct spin *s)
{
	__u32 index = s->cell;
	struct cell *cell = bpf_map_lookup_elem(&ledger, &index);

	if (cell && cell_acquire(cell, bpf_ktime_get_ns(), 1))
		s->granted++;
	return 0;
}

/* Takes from a cell as fast as it can. */
SEC("syscall")
int test_spin(struct spin *c)
{
	struct spin s = { .cell = c->cell };

	bpf_loop(c->rounds, spin_once, &s, 0);
	c->granted = s.granted;
	return 0;
}

struct grown_case {
	__u64 seen;
	__u64 total;
	__u64 grown;
};

SEC("syscall")
int test_grown(struct grown_case *c)
{
	__u64 seen = c->seen;

	c->grown = grown(&seen, c->total);
	c->seen = seen;
	return 0;
}
