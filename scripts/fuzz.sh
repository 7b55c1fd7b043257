#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs every fuzz target for the given time, those of the whole module or of
# some packages:
#
#	fuzz.sh 30s [./folder ...]
#
# As many packages are under way as there are processors. A package's targets run
# one after the other, each with one worker, out of one binary; what they print
# is shown when the last of them has ended.
set -euo pipefail
time=${1:?usage: fuzz.sh TIME [./FOLDER ...]}
shift
cd "$(dirname "$0")/.."

# targets lists the names of the targets in the folder "$1".
targets() { grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$1"/*_test.go | cut -d' ' -f2; }

# fuzz runs the target "$2" of the folder "$1", out of the binary in "$3".
# Minimizing is bounded: by default it may take a minute of the time. The folder
# of what it found interesting is that of `go test -fuzz`.
fuzz() {
	(cd "$1" && "$3/fuzz.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x \
		-test.fuzzcachedir "$cache/${1#./}" -test.parallel 1 -test.paniconexit0) </dev/null 2>&1 | tee "$3/log"
}

# fuzz_package fuzzes all targets of the folder "$1", with files in "$2".
fuzz_package() {
	local name
	# The binary is instrumented for all of them: the pattern is not looked at.
	go test -c -fuzz . -o "$2/fuzz.test" "$1" || return 1
	for name in $(targets "$1"); do
		echo "== $1 $name"
		if fuzz "$1" "$name" "$2"; then
			continue
		fi
		# The tool itself may trip over the end of its time, which is no finding:
		# then there is no failing input.
		if grep -q 'Failing input written' "$2/log" || ! grep -q 'context deadline exceeded' "$2/log"; then
			return 1
		fi
		echo "== $1 $name, once more"
		fuzz "$1" "$name" "$2" || return 1
	done
}

# job is fuzz_package in the background: nothing is written in between what it
# prints.
job() {
	local out status=0
	mkdir "$work/$2"
	out=$(fuzz_package "$1" "$work/$2" 2>&1) || status=$?
	rm -r "${work:?}/$2"
	(flock 9 && printf '%s\n' "$out") 9>"$work/lock"
	return "$status"
}

packages=("$@")
if [[ $# == 0 ]]; then
	mapfile -t packages < <(git ls-files --cached --others --exclude-standard -- '*_test.go' |
		xargs -r grep -lE '^func Fuzz' | sed -E 's|^(.*)/[^/]*$|./\1|' | sort -u)
fi
count=0
for package in "${packages[@]}"; do
	count=$((count + $(targets "$package" | wc -l)))
done
if [[ $count == 0 ]]; then
	echo "fuzz.sh: no fuzz target found" >&2
	exit 1
fi
cache=$(go env GOCACHE)/fuzz/$(go list -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
running=0
failed=0
for package in "${packages[@]}"; do
	if ((running == $(nproc))); then
		wait -n || failed=1
		running=$((running - 1))
	fi
	job "$package" "${package//\//_}" &
	running=$((running + 1))
done
while ((running > 0)); do
	wait -n || failed=1
	running=$((running - 1))
done
if [[ $failed != 0 ]]; then
	echo "fuzz.sh: some targets failed" >&2
	exit 1
fi
echo "fuzzed $count targets for $time each"
