/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision of the connect hooks, the same for every address family. */
#ifndef EGRESS_CONNECT_H
#define EGRESS_CONNECT_H

/* What connect() was called with, and what the gates find out about it. */
struct call {
	struct addr dest;
	struct addr source; /* zero = not bound */
	__u64 netns;  /* cookie of the namespace, 0 until it is needed */
	__u64 cookie; /* of the socket, 0 until it is needed */
	__u32 exit;
	__u32 device; /* ifindex to which the socket is bound, or was: see rebind */
	__u16 port; /* host order */
	__u8 native_v6; /* neither AF_INET nor v4-mapped */
	__u8 named;
	__u8 redirected;
	__u8 v6_loopback; /* an IPv4 token is out of the socket's reach: ::1 instead */
	__u8 proxy; /* the destination is a forward proxy, and exit the one behind it */
	__u8 dropped; /* refused as if nobody had answered */
	__u8 kernel_sock; /* the socket is the kernel's own */
	__u8 again; /* and was counted before */
	__u8 refused;
	__u8 pad;
	__be32 token; /* set when redirected, but for v6_loopback */
	struct target target; /* what the kernel plane knows of it */
};

/*
 * Rebinding. A socket that is bound to a device (SO_BINDTODEVICE) does not
 * reach loopback. Where policy asks for it the hook takes the binding off, and
 * the proxy gives it to its own socket instead: on the wire all is as before.
 * The client, however, finds its option empty if it reads it, and that is why
 * policy has to ask. The binding is remembered with the socket: if the same
 * socket connects once more, it counts as bound, and has its binding back where
 * that connection goes untouched. What a client unbinds in between is thus
 * bound again; and a socket that is used again after the daemon has gone
 * follows the routes, unbound.
 *
 * The kernel lets a task unbind a socket only with CAP_NET_RAW in the user
 * namespace of the network, as it does with setsockopt(); the connections of
 * others stay untouched.
 */

/* Sets what the socket is bound to; 0 unbinds. */
static __always_inline bool bind_device(struct bpf_sock_addr *ctx, __u32 ifindex)
{
	return bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)) == 0;
}

/* The device that the client bound the socket to, whether it still is or not. */
static __always_inline __u32 device_of(const struct control *ctl, struct bpf_sock *sk, bool used)
{
	struct sock_info *info;

	if (sk->bound_dev_if || !used || !(ctl->exits & EXITS_REBIND))
		return sk->bound_dev_if;
	info = bpf_sk_storage_get(&redirected, sk, NULL, 0);
	return info ? info->device : 0;
}

static __always_inline bool may_rebind(const struct control *ctl, const struct call *c)
{
	struct exit_traits t = { .netns = c->netns, .ifindex = c->device };
	struct exit_rule *rule;

	if (!(ctl->exits & EXITS_REBIND))
		return false;
	rule = exit_of_device(&t);
	return rule && rule->rebind;
}

/* The owner, at whom uidrange rules look: who made the socket, unless its file
 * was given away since.
 */
static __always_inline __u32 uid_of(struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	return tp ? BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.sk_uid.val)
		  : (__u32)bpf_get_current_uid_gid();
}

/* The exit as far as it is known now. */
static __always_inline __u32 exit_of_call(const struct control *ctl, struct bpf_sock *sk,
					  const struct call *c)
{
	struct exit_traits t = {
		.source = c->source,
		.netns = c->netns,
		.ifindex = c->device,
		.mark = sk->mark,
	};

	if (ctl->exits == 0)
		return 0;
	if (ctl->exits & EXITS_UID)
		t.uid = uid_of(sk);
	return exit_of(ctl, &t);
}

/* Whose traffic is none of policy's affair. GATE_MAX = it is in scope. */
static __always_inline __u32 out_of_scope(const struct control *ctl, const struct call *c)
{
	if (current_is_own(ctl))
		return GATE_OWN;
	if (ctl->excluded && task_is_excluded())
		return GATE_EXCLUDED;
	if (addr_is_token(&c->dest))
		return GATE_TOKEN;
	return GATE_MAX;
}

/* Whether the proxy could not make an equal connection in the socket's place.
 * GATE_MAX = it could.
 */
static __always_inline __u32 cannot_keep(struct bpf_sock *sk, const struct control *ctl,
					 struct call *c)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct tcp_sock *tp;

	if (BPF_CORE_READ(task, flags) & PF_KTHREAD)
		return GATE_KERNEL;
	if (port_is_storage(c->port))
		return GATE_STORAGE;
	if (c->device && !may_rebind(ctl, c))
		return GATE_DEVICE;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return GATE_PROTOCOL;
	if (BPF_CORE_READ_BITFIELD(&tp->inet_conn.icsk_inet.sk, sk_userlocks) & SOCK_BINDPORT_LOCK)
		return GATE_SOURCE_PORT;
	if (sk->family != AF_INET6)
		return GATE_MAX;
	/* A token is reached by IPv4, which these sockets do not speak. */
	if (!BPF_CORE_READ_BITFIELD(&tp->inet_conn.icsk_inet.sk.__sk_common, skc_ipv6only) &&
	    (addr_is_zero(&c->source) || addr_is_v4(&c->source)))
		return GATE_MAX;
	if (!c->native_v6)
		return GATE_V6_ONLY; /* the kernel will refuse it */
	c->v6_loopback = 1;
	return GATE_MAX;
}

static __always_inline bool is_negative(const struct call *c, __u64 now)
{
	struct negative_key key = { .dest = c->dest, .netns = c->netns, .port = c->port };
	__u64 *until = bpf_map_lookup_elem(&negatives, &key);

	return until && now < *until;
}

/* Writes the flow record. */
static __noinline __u32 record(struct bpf_sock *sk, struct control *ctl, struct call *c, __u64 now,
			       __u32 slot)
{
	struct flow f = {
		.dest = c->dest,
		.source = c->source,
		.cookie = c->cookie,
		.cgroup = bpf_get_current_cgroup_id(),
		.at = now,
		.ifindex = c->device,
		.mark = sk->mark,
		.uid = uid_of(sk),
		.tgid = bpf_get_current_pid_tgid() >> 32,
		.exit = c->exit,
		.slot = slot,
		.port = c->port,
	};

	bpf_get_current_comm(f.comm, sizeof(f.comm));
	if (c->v6_loopback)
		return flow_put_cookie(c->netns, &f) ? GATE_REDIRECTED : GATE_FULL;
	c->token = flow_put(ctl, c->netns, &f);
	return c->token ? GATE_REDIRECTED : GATE_FULL;
}

/* Takes the record back, unless somebody has it, who then took it off the
 * pending count as well.
 */
static __always_inline void unrecord(const struct call *c, struct backlog *backlog)
{
	struct flow_key key = {
		.netns = c->netns,
		.id = c->v6_loopback ? FLOW_BY_COOKIE | c->cookie : c->token,
	};

	if (bpf_map_delete_elem(&flows, &key) == 0)
		__sync_fetch_and_add(&backlog->pending, -1);
}

/* Whether the daemon is there to hold connections. A beat from after now was
 * read is fresh.
 */
static __always_inline bool daemon_alive(const struct control *ctl, __u64 now)
{
	return (__s64)(now - READ_ONCE(ctl->beat)) <= (__s64)HEARTBEAT_MAX;
}

/* The gates that a named destination passes, in order. */
static __noinline __u32 redirect(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				 struct control *ctl, struct call *c, __u16 *listener)
{
	struct enrolment *enrolment;
	struct backlog *backlog;
	__u64 now = bpf_ktime_get_ns();
	__u32 gate, slot;

	c->netns = bpf_get_netns_cookie(ctx);
	c->cookie = bpf_get_socket_cookie(ctx);
	gate = cannot_keep(sk, ctl, c);
	if (gate != GATE_MAX)
		return gate;
	/* Going native is no way out where policy wants to be asked. */
	if (!(c->named & NAMED_FAIL_CLOSED) && is_negative(c, now))
		return GATE_NEGATIVE;
	enrolment = bpf_map_lookup_elem(&enrolments, &c->netns);
	if (!enrolment)
		return GATE_NETNS;
	*listener = enrolment->port;
	slot = enrolment->slot;
	if (!listener_alive(ctx, *listener, c->v6_loopback))
		return GATE_LISTENER;
	if (!daemon_alive(ctl, now))
		return GATE_HEARTBEAT;
	backlog = bpf_map_lookup_elem(&backlogs, &slot);
	if (!backlog || !backlog_enter(backlog))
		return GATE_BACKLOG;
	gate = record(sk, ctl, c, now, slot);
	if (gate != GATE_REDIRECTED) {
		__sync_fetch_and_add(&backlog->pending, -1);
		return gate;
	}
	/* Last, since an unprivileged client's binding cannot be put back. */
	if (sk->bound_dev_if && !bind_device(ctx, 0)) {
		unrecord(c, backlog);
		return GATE_DEVICE;
	}
	return GATE_REDIRECTED;
}

/* Whether policy's fail: closed speaks of this gate. The others say that the
 * connection cannot be shaped at all, or was tried a moment ago.
 */
static __always_inline bool gate_is_safety(__u32 gate)
{
	return gate == GATE_NETNS || gate == GATE_LISTENER || gate == GATE_HEARTBEAT ||
	       gate == GATE_BACKLOG || gate == GATE_FULL;
}

/* Notes for the device's program when the SYN of the socket may go; at 0 it has
 * to find out.
 */
static __noinline bool turn_note(const struct call *c, __u64 at)
{
	__u64 cookie = c->cookie;
	struct turn t = {
		.at = at,
		.dest = c->dest,
		.set = c->target.set,
		.name = c->target.name,
	};

	return bpf_map_update_elem(&turns, &cookie, &t, BPF_ANY) == 0;
}

/* Whether some rule tells lanes apart by an exit that shows only on the way
 * out.
 */
static __always_inline bool set_is_late(const struct control *ctl, const struct plane_set *set,
					const struct call *c)
{
	__u32 flags = 0;

	if (!(ctl->exits & EXITS_SOURCE && addr_is_zero(&c->source)) &&
	    !(ctl->exits & EXITS_DEVICE && !c->device))
		return false;
#pragma unroll
	for (__u32 i = 0; i < MAX_RULES; i++) {
		if (i < set->rules)
			flags |= set->rule[i].flags;
	}
	return flags & RULE_EXIT;
}

/* Asks the rules of the set. In a function of its own since the stack is
 * small.
 */
static __noinline int plane_ask(struct plane_set *set, struct call *c, __u32 hold, bool guard)
{
	struct plane_call p = {
		.dest = c->dest,
		.name = c->target.name,
		.exit = c->exit,
		.hold = hold,
	};
	int answer = guard ? plane_guard(set, &p) : plane_admit(set, &p);

	if (answer == ADMIT_GRANTED && hold & HOLD_PACED) {
		__u64 cookie = c->cookie;

		/* The turn of an earlier connection of this socket is over. */
		bpf_map_delete_elem(&turns, &cookie);
	}
	if (answer == ADMIT_HELD && !turn_note(c, p.turn))
		answer = ADMIT_ASK;
	c->dropped = answer == ADMIT_DROPPED;
	return answer;
}

static __always_inline __u32 plane_hold(const struct control *ctl, const struct call *c)
{
	__u32 hold = daemon_alive(ctl, bpf_ktime_get_ns()) ? HOLD_PROXY : 0;

	if (is_paced(ctl, c->netns, &c->dest, c->device))
		hold |= HOLD_PACED;
	return hold;
}

/*
 * The kernel plane's part before the proxy is asked: what a set of its own
 * grants, holds or refuses. GATE_MAX: the proxy has to be asked. Global, like
 * the next one, so that the verifier looks at it once.
 */
__noinline int plane_before(struct call *c)
{
	struct control *ctl = control_get();
	struct plane_set *set;
	__u32 id, hold;

	if (!c || !ctl)
		return GATE_MAX;
	id = c->target.set;
	set = bpf_map_lookup_elem(&plane_sets, &id);
	if (!set || set->flags & SET_PROXY)
		return GATE_MAX;
	hold = plane_hold(ctl, c);
	if (set_is_late(ctl, set, c)) {
		if (hold & HOLD_PACED && turn_note(c, 0))
			return GATE_GRANTED;
		if (hold & HOLD_PROXY)
			return GATE_MAX; /* it finds the exit */
	}
	switch (plane_ask(set, c, hold, false)) {
	case ADMIT_GRANTED:
		return GATE_GRANTED;
	case ADMIT_HELD:
		return GATE_HELD;
	case ADMIT_REFUSED:
	case ADMIT_DROPPED:
		return GATE_OVER;
	}
	return GATE_MAX;
}

/* Its part where the proxy cannot have the connection, for which the gate
 * stands: what is over a budget is refused, and what goes around the proxy waits
 * while a lane is closed.
 */
__noinline int plane_beyond(struct call *c, int gate)
{
	struct control *ctl = control_get();
	struct plane_set *set;
	__u32 id, hold;
	bool late;

	if (!c || !ctl)
		return gate;
	id = c->target.set;
	set = bpf_map_lookup_elem(&plane_sets, &id);
	if (!set)
		return gate;
	hold = plane_hold(ctl, c);
	late = set_is_late(ctl, set, c);
	if (!(set->flags & SET_PROXY)) {
		if (!(hold & HOLD_PROXY))
			return GATE_HEARTBEAT;
		/* The exit as far as it is known must do. Of what is not late
		 * it was said before that it has no room, or no lane.
		 */
		switch (plane_ask(set, c, 0, false)) {
		case ADMIT_GRANTED:
			return GATE_GRANTED;
		case ADMIT_FULL:
			return GATE_FULL;
		}
		return GATE_OVER;
	}
	if (late && hold & HOLD_PACED && turn_note(c, 0))
		return gate;
	switch (plane_ask(set, c, hold, true)) {
	case ADMIT_GRANTED:
		return gate;
	case ADMIT_HELD:
		return GATE_HELD;
	}
	return GATE_CLOSED;
}

/*
 * Decides a named connection. What the kernel plane can hold by itself it
 * does; for the rest there is the proxy; and what neither holds is refused if
 * it is over a budget, or its lane closed.
 */
static __always_inline __u32 admit(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				   struct control *ctl, struct call *c, __u16 *listener)
{
	bool plane = c->target.set && !c->proxy;
	__u32 gate = plane ? plane_before(c) : GATE_MAX;

	if (gate != GATE_MAX)
		return gate;
	gate = redirect(ctx, sk, ctl, c, listener);
	if (plane && gate != GATE_REDIRECTED)
		gate = plane_beyond(c, gate);
	return gate;
}

/* Ends what the socket was used for before, which is over, whatever becomes of
 * this call.
 */
static __noinline void end_earlier(struct bpf_sock *sk, struct control *ctl, struct call *c)
{
	struct ended earlier;

	if (!sock_forget(ctl, sk, c->cookie, &earlier))
		return;
	ended_count(ctl, &earlier);
	c->again = 1;
}

static __always_inline __u32 via_of(__u32 gate)
{
	switch (gate) {
	case GATE_GRANTED:
		return VIA_GRANTED;
	case GATE_HELD:
		return VIA_HELD;
	}
	return VIA_NOTHING;
}

/* Counts a call that is not left alone, or whose socket is never seen to close,
 * and makes the socket of a redirected one remembered; it must be unbound.
 */
static __noinline void count_now(struct bpf_sock *sk, struct control *ctl, const struct call *c,
				 __u32 gate, bool refused)
{
	struct sock_info info = { .dest = {
					  .addr = c->dest,
					  .exit = c->exit,
					  .port = c->port,
					  .protocol = IPPROTO_TCP,
				  } };
	struct dest *d = dest_get(ctl, &info.dest);

	if (!d)
		return;
	if (refused) {
		__sync_fetch_and_add(&d->refused, 1);
	} else if (gate == GATE_REDIRECTED) {
		__sync_fetch_and_add(&d->redirected, 1);
		info.timed = 1; /* the handshake is one with the proxy */
		info.device = c->device;
		bpf_sk_storage_get(&redirected, sk, &info, BPF_SK_STORAGE_GET_F_CREATE);
	} else {
		__sync_fetch_and_add(dest_attempts(d, via_of(gate)), 1);
	}
}

/* Makes a socket that is left alone remembered. */
static __noinline void count_later(struct bpf_sock_addr *ctx, struct control *ctl,
				   const struct call *c, __u32 gate)
{
	struct recent next = {
		.addr = c->dest,
		.exit = c->exit,
		.port = c->port,
		.late = !c->proxy && ctl->exits & EXITS_LATE,
		.timed = c->again,
		.via = via_of(gate),
	};

	remember_untouched(ctl, ctx, &next);
}

/* Counts the call for its destination and makes the socket remembered.
 *
 * The exit of an untouched connection may show only once it is established and
 * has a source address and a route: an exit told by those may come first in the
 * policy, whatever fits now. Its attempt is counted then. Sockets of the kernel,
 * subflows of multipath sockets among them, are never seen to close; they are
 * counted at once.
 */
static __always_inline void count_call(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				       struct control *ctl, const struct call *c, __u32 gate,
				       bool refused)
{
	if (!refused && gate != GATE_REDIRECTED && !c->kernel_sock)
		count_later(ctx, ctl, c, gate);
	else
		count_now(sk, ctl, c, gate, refused);
}

/*
 * Decides one connect(): c->refused is what the hook has to return. When the
 * connection is redirected, c->redirected is set, and c->token, or
 * c->v6_loopback, and *listener say where to. The flow record exists by then.
 */
static __always_inline void on_connect(struct bpf_sock_addr *ctx, struct call *c, __u16 *listener)
{
	struct control *ctl = control_get();
	struct bpf_sock *sk = ctx->sk;
	struct sock_looks looks = {};
	bool refused = false, in_scope;
	__u32 gate;

	if (!ctl || !sk)
		return;
	/* UDP has a way of its own: see udp.h. */
	gate = ctx->protocol == IPPROTO_TCP ? out_of_scope(ctl, c) : GATE_PROTOCOL;
	in_scope = gate == GATE_MAX;
	if (in_scope) {
		sock_look(sk, &looks);
		c->kernel_sock = looks.kernel;
		c->cookie = looks.cookie;
		c->device = device_of(ctl, sk, looks.cookie);
		if (looks.cookie || recent_holds(ctl, sk))
			end_earlier(sk, ctl, c);
		c->named = destination_named(ctl, &c->dest, c->port, &c->target);
		c->exit = exit_of_endpoint(ctl, &c->dest, c->port);
		c->proxy = c->exit != 0;
		/* To be asked for them costs more than most that is done here. */
		if (c->device || (c->named && READ_ONCE(ctl->pace_limit))) {
			c->netns = bpf_get_netns_cookie(ctx);
			c->cookie = bpf_get_socket_cookie(ctx);
		}
		if (c->proxy)
			c->named |= NAMED;
		else
			c->exit = exit_of_call(ctl, sk, c);
		gate = c->named ? admit(ctx, sk, ctl, c, listener) : GATE_UNNAMED;
		c->redirected = gate == GATE_REDIRECTED;
		refused = gate == GATE_OVER || gate == GATE_CLOSED ||
			  (c->named & NAMED_FAIL_CLOSED && gate_is_safety(gate));
	}
	if (is_canary(ctl, &c->dest, c->port)) {
		ctl->canary_gate = gate + 1;
		return;
	}
	gate_add(gate, refused);
	/* A binding taken off for an earlier connection of this socket. */
	if (in_scope && !c->redirected && c->device && !sk->bound_dev_if)
		bind_device(ctx, c->device);
	if (in_scope)
		count_call(ctx, sk, ctl, c, gate, refused);
	if (refused) {
		c->refused = 1;
		bpf_set_retval(c->dropped ? -ETIMEDOUT : -ECONNREFUSED);
	}
}

#endif
