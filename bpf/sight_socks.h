/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sockets, from where no helper gives them. */
#ifndef SIGHT_SOCKS_H
#define SIGHT_SOCKS_H

/* The cookie of a socket, or 0 if nobody asked for it yet: the hook at
 * connect() does.
 */
static __always_inline __u64 sock_cookie(struct sock___sight *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
}

/*
 * Whether sk is still the socket with that cookie, and open. The memory may
 * belong to another socket by now, which then has another cookie.
 */
static __always_inline bool sock_lives(struct sock___sight *sk, __u64 cookie)
{
	if (sock_cookie(sk) != cookie)
		return false;
	return !(BPF_CORE_READ(sk, __sk_common.skc_flags) >> SOCK_DEAD & 1);
}

/* The TCP socket behind a descriptor of the running task, or NULL. */
static __always_inline struct sock___sight *sock_of_fd(__s32 fd)
{
	struct task_struct___sight *task = (void *)bpf_get_current_task_btf();
	struct file___sight *file = NULL;
	struct socket___sight *socket;
	struct file___sight **files;
	struct sock___sight *sk;
	struct fdtable *table;

	table = BPF_CORE_READ(task, files, fdt);
	if (fd < 0 || (__u32)fd >= BPF_CORE_READ(table, max_fds))
		return NULL;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd) || !file)
		return NULL;
	if ((BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) != S_IFSOCK)
		return NULL;
	socket = BPF_CORE_READ(file, private_data);
	/* A socket knows its file: without that this is none. */
	if (BPF_CORE_READ(socket, file) != file)
		return NULL;
	sk = BPF_CORE_READ(socket, sk);
	if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return NULL;
	return sk;
}

#endif
