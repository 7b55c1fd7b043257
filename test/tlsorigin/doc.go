// SPDX-License-Identifier: Apache-2.0

// Package tlsorigin is an HTTPS origin for tests that remembers how each client
// looked: its ClientHello, the first frames of its HTTP/2 connection, the
// fields of its requests in order and case as they were sent, and when each
// request came. It answers as many requests a second as it was told and limits
// the rest, without any burst.
//
// TLS is crypto/tls. HTTP is read here, byte by byte, because servers in
// libraries hide what a fingerprint is made of. It knows as much of HTTP as
// clients in tests need, and is no server for anything else.
package tlsorigin
