// SPDX-License-Identifier: Apache-2.0

package loader

// The object for the tests of the headers. Its names end in _test, so it is
// never part of the binary.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package loader -output-suffix _test -type addr_case -type area_case -type exit_case -type acquire_case -type spin -type grown_case -type step_case -cflags "-mcpu=v3 -nostdinc -Wall -Wextra -Wpadded -Werror -g -O2 -I../bpf -isystem ../bpf/headers" headers ../bpf/egress_test.bpf.c
