#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Replaces bpf/headers/ by the libbpf headers of one pinned Debian package, so
# that the objects build the same everywhere and no header of the host leaks
# in. Needs apt-get and dpkg-deb; run it from anywhere.
set -eu

VERSION=1:1.1.2-0+deb12u1
HEADERS="bpf_core_read.h bpf_endian.h bpf_helper_defs.h bpf_helpers.h"

cd "$(dirname "$0")/../bpf/headers"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
chmod 755 "$work" # apt-get downloads as the user _apt

(cd "$work" && apt-get download -q "libbpf-dev=$VERSION" && dpkg-deb -x libbpf-dev_*.deb .)
for header in $HEADERS; do
	# Trailing blanks would trip every whitespace check of ours.
	sed 's/[[:space:]]*$//' "$work/usr/include/bpf/$header" >"$header"
done
echo "libbpf-dev $VERSION" >VERSION
