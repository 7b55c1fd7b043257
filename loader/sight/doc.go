// SPDX-License-Identifier: Apache-2.0

// Package sight sees the plaintext of TLS connections of processes on this
// host: probes on the functions of their TLS libraries hand over what can hold
// the head of a request or a response, and whose socket it went through. It
// changes nothing and can hold nothing up: a process does not notice it except
// by the time that a probe takes.
//
// Only processes in the given cgroups are looked at; the programs ask for that
// before anything else. Bodies are left where they are, apart from what stands
// in the first few kilobytes behind a head.
//
// A socket is told with the proof for it or not at all. What another thread
// did lately, or which socket a thread used last, is no proof.
package sight
