// SPDX-License-Identifier: Apache-2.0

// Package discover finds the TLS libraries in running processes and where in
// their files the functions are that can be probed.
//
// Every byte it reads is a stranger's: the files are those that shaped
// processes map, their names are what somebody called them, and both may be
// made to mislead a privileged reader. Files are therefore told by device and
// inode, opened through the mapping itself, judged by what they define and
// never by their names, and read within a budget.
package discover
