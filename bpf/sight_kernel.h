/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the probes of TLS libraries need to know of Linux beyond kernel.h. The
 * part of a struct's name after ___ is ours: the loader drops it when it looks
 * the fields up in the BTF of the running kernel.
 */
#ifndef SIGHT_KERNEL_H
#define SIGHT_KERNEL_H

/* include/uapi/linux/bpf.h: enum bpf_map_type */
enum {
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

/* include/uapi/linux/bpf.h: flags of helpers */
enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

/* include/uapi/linux/stat.h */
#define S_IFMT 0170000
#define S_IFSOCK 0140000

/* include/net/sock.h: enum sock_flags, nobody holds the socket open any more */
#define SOCK_DEAD 0

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"

/* include/uapi/linux/uio.h */
struct iovec {
	__u64 iov_base;
	__u64 iov_len;
};

/* include/linux/socket.h: struct user_msghdr, as user space lays it out */
struct user_msghdr {
	__u64 msg_name;
	__u32 msg_namelen;
	__u64 msg_iov;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* arch/x86/include/asm/ptrace.h */
struct pt_regs___x86 {
	unsigned long r14;
	unsigned long r8;
	unsigned long ax;
	unsigned long bx;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long sp;
};

/* arch/arm64/include/asm/ptrace.h */
struct pt_regs___arm64 {
	__u64 regs[31];
	__u64 sp;
	__s32 syscallno;
};

/* include/linux/socket.h and include/net/sock.h */
struct sock_common___sight {
	unsigned long skc_flags;
	atomic64_t skc_cookie;
};

struct sock___sight {
	struct sock_common___sight __sk_common;
	__u16 sk_protocol;
};

/* include/linux/net.h */
struct socket___sight {
	struct file___sight *file;
	struct sock___sight *sk;
};

/* include/linux/fs.h */
struct inode {
	unsigned short i_mode;
};

struct file___sight {
	struct inode *f_inode;
	void *private_data;
};

/* include/linux/fdtable.h */
struct fdtable {
	unsigned int max_fds;
	struct file___sight **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

/* include/linux/sched.h; self_exec_id counts the calls of exec() */
struct task_struct___sight {
	__u64 self_exec_id;
	__u64 start_boottime;
	struct task_struct___sight *group_leader;
	struct files_struct *files;
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#endif
