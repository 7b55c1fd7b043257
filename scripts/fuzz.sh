#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs every fuzz target of the module for the given time, one after the other:
#
#	fuzz.sh 30s
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
cd "$(dirname "$0")/.."

# The package of `go test -list` comes after its targets.
listed=$(go test -list '^Fuzz' ./...)
targets=$(awk '
	/^Fuzz/ { names[n++] = $1 }
	/^ok/   { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }' <<<"$listed")
if [[ -z $targets ]]; then
	echo "fuzz.sh: no fuzz target found" >&2
	exit 1
fi
while read -r package target; do
	echo "== $package $target"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" </dev/null
done <<<"$targets"
echo "fuzzed $(wc -l <<<"$targets") targets for $time each"
