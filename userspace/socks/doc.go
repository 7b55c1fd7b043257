// SPDX-License-Identifier: Apache-2.0

// Package socks follows the handshake of SOCKS4, 4a and 5 between a client and
// its proxy: who asks, for which destination, and what the proxy says. It does
// no I/O and changes no byte. A relay shows an Observer each message before it
// forwards it, so that it can hold the request of a client until the
// destination may be contacted.
//
// SOCKS4 and 4a have no standard but the memos of their authors; SOCKS5 is RFC
// 1928, and its user name and password RFC 1929. What a peer may do is judged
// by what clients and proxies in use do: leniently, as long as it stays beyond
// doubt which destination is meant and where a message ends.
//
// The user name tells exits apart, so it is kept. The password is read over:
// it is in no field, event or error. Other ways to authenticate, GSSAPI among
// them, may encrypt what follows and end the view (Opaque).
package socks

// MaxMessage is the length in bytes of the longest message of a client: with
// that many at hand, an Observer wants no more of them. It may still want the
// proxy to answer first.
const MaxMessage = 8 + 256 + 256 // SOCKS4a: user id and domain name, each with its NUL
