// SPDX-License-Identifier: Apache-2.0

package sight

// The object for the tests of the headers. Its names end in _test, so it is
// never part of the binary.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package sight -output-suffix _test -type choose_case -type hello_case -cflags "-mcpu=v3 -nostdinc -Wall -Wextra -Wpadded -Werror -g -O2 -I../../bpf -isystem ../../bpf/headers" headers ../../bpf/sight_test.bpf.c
