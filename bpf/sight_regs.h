/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Registers of user space by what they mean. One object serves both
 * architectures: which of the two it runs on is known at load time, and the
 * verifier drops the other branch. Registers are read, not accessed, since
 * the verifier wants to see the offset in the instruction itself.
 */
#ifndef SIGHT_REGS_H
#define SIGHT_REGS_H

static __always_inline bool on_x86(void)
{
	return bpf_core_field_exists(struct pt_regs___x86, r14);
}

/* The n-th argument of a C function, from 0, at its first instruction. */
static __always_inline __u64 c_arg(void *regs, const int n)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;

	if (!on_x86())
		return BPF_CORE_READ(a, regs[n]);
	switch (n) {
	case 0:
		return BPF_CORE_READ(x, di);
	case 1:
		return BPF_CORE_READ(x, si);
	case 2:
		return BPF_CORE_READ(x, dx);
	case 3:
		return BPF_CORE_READ(x, cx);
	default:
		return BPF_CORE_READ(x, r8);
	}
}

/* The n-th word of the arguments of a Go function (ABIInternal, Go 1.17 and
 * later), at its first instruction.
 */
static __always_inline __u64 go_arg(void *regs, const int n)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;

	if (!on_x86())
		return BPF_CORE_READ(a, regs[n]);
	switch (n) {
	case 0:
		return BPF_CORE_READ(x, ax);
	case 1:
		return BPF_CORE_READ(x, bx);
	default:
		return BPF_CORE_READ(x, cx);
	}
}

/* What a function returns, of C and of Go (its first word). */
static __always_inline __u64 returned(void *regs)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;

	return on_x86() ? BPF_CORE_READ(x, ax) : BPF_CORE_READ(a, regs[0]);
}

static __always_inline __u64 stack_pointer(void *regs)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;

	return on_x86() ? BPF_CORE_READ(x, sp) : BPF_CORE_READ(a, sp);
}

/* The running goroutine. Go keeps it in this register in its own code, and the
 * stubs of its system calls leave it alone.
 */
static __always_inline __u64 goroutine(void *regs)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;

	return on_x86() ? BPF_CORE_READ(x, r14) : BPF_CORE_READ(a, regs[28]);
}

/* How a system call was given what it sends. */
enum gift {
	GIFT_UNKNOWN,
	GIFT_BUFFER,  /* write, sendto */
	GIFT_IOVEC,   /* writev */
	GIFT_MESSAGE, /* sendmsg */
};

static __always_inline enum gift gift_of(long number)
{
	/* arch/x86/entry/syscalls/syscall_64.tbl */
	if (on_x86()) {
		switch (number) {
		case 1:
		case 44:
			return GIFT_BUFFER;
		case 20:
			return GIFT_IOVEC;
		case 46:
			return GIFT_MESSAGE;
		}
		return GIFT_UNKNOWN;
	}
	/* include/uapi/asm-generic/unistd.h */
	switch (number) {
	case 64:
	case 206:
		return GIFT_BUFFER;
	case 66:
		return GIFT_IOVEC;
	case 211:
		return GIFT_MESSAGE;
	}
	return GIFT_UNKNOWN;
}

/*
 * Where the data of the sending system call under way begins in user space, or
 * 0. The registers are those at its entry.
 */
static __always_inline __u64 sent_from(void *regs)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;
	struct user_msghdr message;
	struct iovec first;
	__u64 at = on_x86() ? BPF_CORE_READ(x, si) : BPF_CORE_READ(a, regs[1]);

	switch (gift_of(on_x86() ? (long)BPF_CORE_READ(x, orig_ax)
				 : (long)BPF_CORE_READ(a, syscallno))) {
	case GIFT_BUFFER:
		return at;
	case GIFT_MESSAGE:
		if (bpf_probe_read_user(&message, sizeof(message), (void *)at))
			return 0;
		at = message.msg_iov;
		break;
	case GIFT_IOVEC:
		break;
	default:
		return 0;
	}
	if (bpf_probe_read_user(&first, sizeof(first), (void *)at))
		return 0;
	return first.iov_base;
}

#endif
