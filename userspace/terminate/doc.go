// SPDX-License-Identifier: Apache-2.0

// Package terminate ends a TLS connection here and speaks TLS to its origin
// again, so that what goes through can be read and paced like plaintext.
//
// It is for connections whose owner agreed: the client must trust a
// certificate authority of the host (Authority). The origin's handshake comes
// first, with a ClientHello that is the client's own but for the random, the
// session id and the key shares. Only then the client is answered, with the
// protocol that the origin chose. Bytes between the two are moved as they are.
//
// Whatever cannot be kept leads to the connection being handed back before the
// client has heard anything, for its owner to pass it through untouched
// (ShapeLost). What failed once for a kind of client and a name is not tried
// again for a while.
//
// The traps: Start owns the descriptors it is given from the call on, and who
// takes a Result owns those in it. A socket pair has no reset, so who wants one
// says so by Session.ResetClient and ResetOrigin before closing its end.
package terminate
