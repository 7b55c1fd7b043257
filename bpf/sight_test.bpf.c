/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Functions of the headers for tests to call on bytes of their own. Not part
 * of the daemon.
 */
#include "sight.bpf.c"

struct choose_case {
	struct conn conn;
	__u64 at; /* in the process that runs the test */
	__u64 offset;
	__u32 total;
	__u32 len;
	__u8 dir;
	__u8 pad[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct choose_case);
} choose_cases SEC(".maps");

SEC("syscall")
int test_choose(void *ctx __attribute__((unused)))
{
	__u32 zero = 0;
	struct choose_case *c = bpf_map_lookup_elem(&choose_cases, &zero);
	struct shown s = {};

	if (!c)
		return 0;
	s.at = c->at;
	s.offset = c->offset;
	s.total = c->total;
	s.dir = c->dir;
	choose(&c->conn, &s);
	c->at = s.at;
	c->offset = s.offset;
	c->total = s.total;
	c->len = s.len;
	return 0;
}

struct hello_case {
	__u8 bytes[HELLO_PREFIX];
	__u8 found;
	__u32 at; /* of the random */
};

SEC("syscall")
int test_hello(struct hello_case *c)
{
	__u8 bytes[HELLO_PREFIX];
	const __u8 *random;

	__builtin_memcpy(bytes, c->bytes, sizeof(bytes));
	random = hello_random(bytes);
	c->found = !!random;
	c->at = random ? random - bytes : 0;
	return 0;
}
