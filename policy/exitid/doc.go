// SPDX-License-Identifier: Apache-2.0

// Package exitid tells the exits behind one gateway apart by the user name
// that a client sends. Providers of proxies put parameters into it, one of
// which names a session: requests with the same session leave from the same
// address, for some time. Such a session is an exit.
//
// A Pattern finds the session in a user name. It is a regular expression of
// the policy, or one of the built-in patterns by name. Only user names are
// read: where a provider puts its parameters into the password, sessions
// cannot be told apart here, and what the gateway needs is one user or one
// port per exit.
package exitid
