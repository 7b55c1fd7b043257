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
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Minimizing is bounded: by default it may take a minute of the time.
fuzz() {
	go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 10x "$1" </dev/null 2>&1 | tee "$log"
}
while read -r package target; do
	echo "== $package $target"
	if fuzz "$package" "$target"; then
		continue
	fi
	# The tool itself may trip over the end of its time, which is no finding:
	# then there is no failing input.
	if grep -q 'Failing input written' "$log" || ! grep -q 'context deadline exceeded' "$log"; then
		exit 1
	fi
	echo "== $package $target, once more"
	fuzz "$package" "$target"
done <<<"$targets"
echo "fuzzed $(wc -l <<<"$targets") targets for $time each"
