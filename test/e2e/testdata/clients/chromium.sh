#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Chromium without a window: URL COUNT WIDTH, and output as that of the clients
# in Python. It opens the page at URL/page, whose script sends the requests and
# leaves what it got in the document.
#
# LAB_PIN is the public key that it trusts, HTTPS_PROXY a proxy, SSLKEYLOGFILE
# what it writes its keys to. It asks for no other host than the page's.
set -eu
base=$1 count=$2 width=$3
host=${base#https://}
host=${host%%[:/]*}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
keep="EXCLUDE $host"
set --
if [ -n "${HTTPS_PROXY-}" ]; then
	set -- --proxy-server="$HTTPS_PROXY"
	proxy=${HTTPS_PROXY#http://}
	keep="$keep, EXCLUDE ${proxy%%:*}"
fi
if [ -n "${SSLKEYLOGFILE-}" ]; then
	set -- "$@" --ssl-key-log-file="$SSLKEYLOGFILE"
fi
HOME=$dir XDG_RUNTIME_DIR=$dir chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-breakpad \
	--no-first-run --no-default-browser-check --disable-background-networking --disable-component-update \
	--disable-sync --disable-extensions --disable-default-apps --metrics-recording-only \
	--host-resolver-rules="MAP * ~NOTFOUND, $keep" --user-data-dir="$dir/profile" \
	--ignore-certificate-errors-spki-list="$LAB_PIN" "$@" --timeout=60000 --virtual-time-budget=60000 \
	--dump-dom "$base/page?n=$count&c=$width" >"$dir/dom" 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
sed -n 's/.*<pre>//; /^{/p' "$dir/dom" | sed 's/<\/pre>.*//'
[ "$(grep -c '"i"' "$dir/dom")" = "$count" ] || { cat "$dir/dom" "$dir/err" >&2; exit 1; }
