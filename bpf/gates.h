/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The ways out of the connect hook. Each call leaves by exactly one of them. */
#ifndef EGRESS_GATES_H
#define EGRESS_GATES_H

/* The loader knows the same names in the same order. */
enum gate {
	GATE_REDIRECTED,
	GATE_UDP,         /* never redirected, only counted */
	GATE_PROTOCOL,    /* neither TCP nor UDP */
	GATE_OWN,         /* the daemon's own connection, but for the short way of unnamed.h */
	GATE_EXCLUDED,    /* by policy: a cgroup outside the scope */
	GATE_KERNEL,      /* a kernel thread */
	GATE_STORAGE,     /* a port of NFS, SMB, iSCSI or Ceph */
	GATE_TOKEN,       /* a token address: redirected by another hook, or a scan */
	GATE_UNNAMED,     /* not named by policy */
	GATE_DEVICE,      /* bound to a device, loopback is out of reach, and no rebind */
	GATE_SOURCE_PORT, /* explicit source port, cannot be kept upstream */
	GATE_V6_ONLY,     /* IPV6_V6ONLY or bound to an IPv6 source */
	GATE_NEGATIVE,    /* upstream failed a moment ago */
	GATE_NETNS,       /* network namespace not enrolled */
	GATE_LISTENER,    /* no listener of ours in this namespace */
	GATE_HEARTBEAT,   /* the accept loop stands still */
	GATE_BACKLOG,     /* too many connections wait to be taken */
	GATE_FULL,        /* no room for the flow record */
	GATE_GRANTED,     /* by the kernel plane, at once */
	GATE_HELD,        /* by the kernel plane, until its turn */
	GATE_OVER,        /* over a budget of the kernel plane: refused */
	GATE_CLOSED,      /* goes around the proxy, and its lane is closed: refused */
	GATE_MAX,
};

struct gate_count {
	__u64 passed;  /* went on, to where the gate's name says */
	__u64 refused; /* of policy's fail: closed */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GATE_MAX);
	__type(key, enum gate);
	__type(value, struct gate_count);
} gates SEC(".maps");

static __always_inline void gate_add(__u32 gate, bool refused)
{
	struct gate_count *count = bpf_map_lookup_elem(&gates, &gate);

	if (!count)
		return;
	if (refused)
		count->refused++;
	else
		count->passed++;
}

/* Lets the processor fetch the gate's count. True unless there is no such gate. */
static __always_inline bool gate_touch(__u32 gate)
{
	struct gate_count *count = bpf_map_lookup_elem(&gates, &gate);

	return count && READ_ONCE(count->passed) != ~0ULL;
}

#endif
