#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs every fuzz target of the module for the given time, one after the other:
#
#	fuzz.sh 30s
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
cd "$(dirname "$0")/.."

# Lines "./folder FuzzName".
targets=$(git ls-files --cached --others --exclude-standard -- '*_test.go' |
	xargs -r grep -HoE '^func Fuzz[A-Za-z0-9_]*' |
	sed -E 's|^(.*)/[^/]*:func (.*)$|./\1 \2|')
if [[ -z $targets ]]; then
	echo "fuzz.sh: no fuzz target found" >&2
	exit 1
fi
while read -r package target; do
	echo "== $package $target"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" </dev/null
done <<<"$targets"
echo "fuzzed $(wc -l <<<"$targets") targets for $time each"
