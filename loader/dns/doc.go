// SPDX-License-Identifier: Apache-2.0

// Package dns sees the DNS answers that sockets of shaped cgroups receive: a
// program at the cgroups' ingress copies each message from port 53, by UDP or
// TCP, that may hold addresses. It changes nothing and drops nothing; a packet
// that is no DNS costs a handful of instructions.
//
// A message is a copy of what arrived at a socket, before the socket, let alone
// the client, judged it: whether it answers a question that somebody asked is
// not known. Nothing is seen of DNS inside TLS or HTTPS.
package dns
