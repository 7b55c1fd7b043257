#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# curl: URL COUNT WIDTH PROTOCOL, and output as that of the clients in Python. One
# process sends WIDTH requests at a time, with HTTP/1.1 on as many connections,
# with HTTP/2 on one.
set -eu
base=$1 count=$2 width=$3
case $4 in
h1) set -- --http1.1 --parallel-immediate ;;
h2) set -- --http2 ;;
esac
curl -sS -m 120 "$@" --parallel --parallel-max "$width" -o /dev/null \
	-w '{"i":"%{url}","status":%{http_code},"retry_after":"%header{retry-after}"}\n' \
	"$base/[0-$((count - 1))]" |
	sed 's#"i":"[^"]*/\([0-9]*\)"#"i":\1#'
