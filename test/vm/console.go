// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// complaint is what a kernel says when something in it is broken, from
// kernel/panic.c, lib/bug.c, arch/x86/kernel/dumpstack.c, kernel/bpf/verifier.c,
// mm and net/core/dev.c. "verifier bug" is from 6.16 on, before it was "verifier
// internal error".
var complaint = regexp.MustCompile(`BUG: |WARNING: |Oops: |Oops - |Kernel panic|general protection fault|` +
	`verifier bug|[Vv]erifier internal error|verifier backtracking bug|cut here|UBSAN: |KASAN: |KFENCE: |` +
	`possible recursive locking|detected stall|soft lockup|blocked for more than|` +
	`unregister_netdevice: waiting|Out of memory|page allocation failure|refcount_t: |list_(add|del) corruption`)

// most bounds what is kept of a console that complains without end.
const most = 20

// complaints reads a kernel's console and returns the lines that tell of
// something broken.
func complaints(in io.Reader) (found []string, err error) {
	lines := bufio.NewReader(in)
	for more := 0; ; {
		line, err := lines.ReadString('\n')
		if complaint.MatchString(line) {
			if len(found) < most {
				found = append(found, printable(line))
			} else {
				more++
			}
		}
		if err == io.EOF {
			if more > 0 {
				found = append(found, fmt.Sprintf("and %d lines more like these", more))
			}
			return found, nil
		}
		if err != nil {
			return found, fmt.Errorf("read console: %w", err)
		}
	}
}

// printable cuts a line of a console to what a terminal can show without harm.
func printable(line string) string {
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, line)
	const longest = 300
	if len(line) > longest {
		line = strings.ToValidUTF8(line[:longest], "") + "..."
	}
	return line
}
