// SPDX-License-Identifier: Apache-2.0

package loader

// One little-endian object serves amd64 and arm64. The .o and .go files are
// committed: building egressd needs Go alone.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package loader -cflags "-mcpu=v3 -nostdinc -Wall -Wextra -Wpadded -Werror -g -O2 -I../bpf -isystem ../bpf/headers" egress ../bpf/egress.bpf.c
