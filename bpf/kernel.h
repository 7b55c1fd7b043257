/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the programs need to know of Linux, and no more. The first half is
 * UAPI and never changes. The second half are internal structs, each with the
 * few fields that are read; their offsets are corrected against the BTF of the
 * running kernel at load time.
 */
#ifndef EGRESS_KERNEL_H
#define EGRESS_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/* include/uapi/linux/bpf.h: enum bpf_map_type */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_SK_STORAGE = 24,
};

/* include/uapi/linux/bpf.h: flags of maps and helpers */
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_F_CURRENT_NETNS = -1,
	BPF_F_INGRESS = 1,
	BPF_SKB_TSTAMP_DELIVERY_MONO = 1,
	BPF_HDR_START_NET = 1,
};

/* include/uapi/linux/bpf.h: enum tcx_action_base; the same as TC_ACT_UNSPEC and
 * TC_ACT_SHOT of include/uapi/linux/pkt_cls.h
 */
enum {
	TCX_NEXT = -1,
	TCX_DROP = 2,
};

/* include/uapi/linux/bpf.h: states of struct bpf_sock, the same as in
 * include/net/tcp_states.h
 */
enum {
	BPF_TCP_SYN_SENT = 2,
	BPF_TCP_FIN_WAIT1 = 4,
	BPF_TCP_CLOSE = 7,
	BPF_TCP_LAST_ACK = 9,
	BPF_TCP_LISTEN = 10,
	BPF_TCP_CLOSING = 11,
};

/* include/uapi/linux/in.h */
enum {
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
};

/* include/linux/socket.h */
enum {
	AF_INET6 = 10,
};

/* include/uapi/asm-generic/socket.h */
enum {
	SOL_SOCKET = 1,
	SO_BINDTOIFINDEX = 62,
};

/* include/uapi/asm-generic/errno.h */
enum {
	ETIMEDOUT = 110,
	ECONNREFUSED = 111,
};

/* include/uapi/asm-generic/fcntl.h */
enum {
	O_NONBLOCK = 2048,
};

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

/* include/net/sock.h: sk_userlocks, the port was chosen by the user */
#define SOCK_BINDPORT_LOCK 8

/* include/net/sock.h: enum sock_flags, the peer's FIN was received in order */
#define SOCK_DONE 1

#define TASK_COMM_LEN 16

/* Padding of these structs is the kernel's affair. */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"

/* include/uapi/linux/bpf.h */
struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;
	__be16 dst_port;
	__u16 : 16;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

/* include/uapi/linux/bpf.h */
struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;
	__u32 user_ip6[4];
	__u32 user_port;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 msg_src_ip4;
	__u32 msg_src_ip6[4];
	struct bpf_sock *sk;
};

/* include/uapi/linux/bpf.h; a socket here is a struct bpf_sock of which only
 * family, state and addresses may be read
 */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__be32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__be32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__be32 remote_ip4;
	__be32 local_ip4;
	__be32 remote_ip6[4];
	__be32 local_ip6[4];
	__be32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	union {
		struct bpf_flow_keys *flow_keys;
		__u64 : 64;
	} __attribute__((aligned(8)));
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	union {
		struct bpf_sock *sk;
		__u64 : 64;
	} __attribute__((aligned(8)));
	__u32 gso_size;
	__u8 tstamp_type;
	__u32 : 24;
	__u64 hwtstamp;
};

/* include/uapi/linux/bpf.h */
struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
			__be16 sport;
			__be16 dport;
		} ipv4;
		struct {
			__be32 saddr[4];
			__be32 daddr[4];
			__be16 sport;
			__be16 dport;
		} ipv6;
	};
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/linux/netdevice.h */
struct net_device {
	int ifindex;
};

/* include/net/dst.h */
struct dst_entry {
	struct net_device *dev;
};

/* include/net/net_namespace.h */
struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

/* include/uapi/linux/in6.h */
struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

/* include/linux/uidgid_types.h; in the initial user namespace */
typedef struct {
	__u32 val;
} kuid_t;

/* include/linux/types.h */
typedef struct {
	__s64 counter;
} atomic64_t;

/* include/net/sock.h; there is no skc_v6_rcv_saddr in kernels without IPv6 */
struct sock_common {
	__be32 skc_rcv_saddr;
	unsigned short skc_family;
	unsigned char skc_state;
	unsigned char skc_reuse : 4;
	unsigned char skc_reuseport : 1;
	unsigned char skc_ipv6only : 1;
	possible_net_t skc_net;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	unsigned long skc_flags;
};

/* include/linux/fs.h */
struct file {
	unsigned int f_flags;
};

struct sock;

/* include/linux/net.h */
struct socket {
	struct file *file;
	struct sock *sk;
};

/* include/net/sock.h; sk_userlocks is a bit-field before 6.6 and a byte since */
struct sock {
	struct sock_common __sk_common;
	__u8 sk_userlocks : 4;
	__u8 sk_kern_sock : 1;
	__u16 sk_protocol;
	__u32 sk_mark;
	kuid_t sk_uid;
	struct socket *sk_socket;
	struct dst_entry *sk_dst_cache;
};

/* include/net/inet_sock.h */
struct inet_sock {
	struct sock sk;
};

/* include/net/inet_connection_sock.h */
struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

/* include/linux/win_minmax.h */
struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

/* include/linux/tcp.h */
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 total_retrans;
	struct minmax rtt_min; /* us */
};

/* include/linux/kernfs.h */
struct kernfs_node {
	__u64 id;
};

/* include/linux/cgroup-defs.h */
struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

/* include/linux/sched.h */
struct task_struct {
	unsigned int flags;
	__s32 tgid;
	struct css_set *cgroups;
};

/* include/linux/filter.h; what a struct bpf_sock_addr is before the verifier
 * rewrites the accesses to it
 */
struct bpf_sock_addr_kern {
	struct sock *sk;
};

/* kernel/bpf/task_iter.c */
struct bpf_iter__task_file {
	struct task_struct *task;
	struct file *file;
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#endif
