// SPDX-License-Identifier: Apache-2.0

// Package keylog receives the secrets of TLS sessions from the processes that
// own them. A process that is told so, most by SSLKEYLOGFILE, writes a line
// for each secret (NSS key log format, RFC 9850); here it writes them to a
// named pipe, so that they are in no file and no longer in memory than they
// are of use.
//
// A Store holds the secrets under the client random, which the ClientHello of
// the same session shows to everyone. A Dir is a folder of pipes, one for each
// service or user, that are read into a Store. Logs tells whether a process
// was asked to write its keys, and where to.
//
// A pipe that nobody reads stops who writes to it, and one whose readers have
// gone kills. That is why pipes are never left alone: beside the daemon a
// second process holds them, see Locks for how the two know of each other.
package keylog
