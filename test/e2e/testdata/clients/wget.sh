#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# wget: URL COUNT WIDTH, and output as that of the clients in Python. WIDTH
# processes send one request after the other, each on one connection.
set -eu
base=$1 count=$2 width=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
k=0
while [ "$k" -lt "$width" ]; do
	set --
	i=$k
	while [ "$i" -lt "$count" ]; do
		set -- "$@" "$base/$i"
		i=$((i + width))
	done
	if [ "$#" -gt 0 ]; then
		# The status says that some answer was no success, which is expected.
		{ wget -S -O /dev/null --tries=1 -T 60 --ca-certificate="$SSL_CERT_FILE" "$@" 2>"$dir/$k" || [ $? = 8 ] || cat "$dir/$k" >&2; } &
	fi
	k=$((k + 1))
done
wait
cat "$dir"/* | awk '
function told() { if (status != "") printf "{\"i\":%s,\"status\":%s,\"retry_after\":\"%s\"}\n", i, status, after; status = after = "" }
/^--[0-9]/ { told(); i = $NF; sub(".*/", "", i) }
/^  HTTP\// { status = $2 }
/^  Retry-After:/ { after = $2 }
END { told() }'
