// SPDX-License-Identifier: Apache-2.0

package dns

// One little-endian object serves amd64 and arm64, as that of package loader.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package dns -type answer -type tally -cflags "-mcpu=v3 -nostdinc -Wall -Wextra -Wpadded -Werror -g -O2 -I../../bpf -isystem ../../bpf/headers" dns ../../bpf/dns.bpf.c
