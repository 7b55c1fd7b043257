#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs tests with the race detector, and ends with their count:
#
#	test.sh PART ... [after PART ...]
#
# The parts, each of which has its list of packages below:
#
#	free     their tests care neither for time nor for who else is busy: as many
#	         packages at once as there are processors
#	loose    they wait for real time, but with room to spare: two at once
#	strict   they measure when something happened, and shall not be late because
#	         others are busy: one at a time. Whatever is in no list is here.
#
# Each part leaves its events in bin/test-PART.json. With `after`, the count is also
# of parts that ran earlier. `test.sh compile` compiles what all parts need.
set -euo pipefail
cd "$(dirname "$0")/.."

free=(
	./policy/... ./metrics/...
	./userspace/{agenda,assemble,dnsmsg,h2,heads,http1,sim,sniff,socks,tlsread}
	./cmd/egressd/internal/{admin,cgroup,demo,diagnose,doctor,explain,history,plot,sdnotify,sysunit,table,top,trust}
	./userspace/fleetsim/... ./loader/sight/discover
	./test ./test/bench ./test/tally ./test/vm/...
)
loose=(
	./cmd/egressd ./cmd/egressd/internal/{daemon,guard,keeper,launch}
	./loader ./loader/{dns,pacer}
	./userspace/{dial,events,keylog,mono,terminate}
	./test/tlsorigin/...
)

# packages lists the import paths of a part.
packages() {
	local all listed
	case $1 in
	free) go list "${free[@]}" ;;
	loose) go list "${loose[@]}" ;;
	strict)
		all=$(go list ./...) || return
		listed=$(go list "${free[@]}" "${loose[@]}") || return
		comm -23 <(sort <<<"$all") <(sort <<<"$listed")
		;;
	*)
		echo "test.sh: no part $1: there are free, loose and strict" >&2
		return 2
		;;
	esac
}

# run runs a part. What it prints is for tally.
run() {
	local at_once=1 list
	case $1 in
	free) at_once=$(nproc) ;;
	loose) at_once=2 ;;
	esac
	list=$(packages "$1") || return
	# Vetting is lint's. The words of the list are paths without blanks.
	# shellcheck disable=SC2086
	go test -race -vet=off -json -p "$at_once" -timeout 20m $list | tee "bin/test-$1.json"
}

if [[ ${1-} == compile ]]; then
	# Asked for the export data of all packages and their tests, the go command
	# compiles them, but links no test.
	go list -race -test -export -deps ./... >/dev/null
	exit
fi
parts=()
earlier=()
after=
for word in "$@"; do
	if [[ $word == after ]]; then
		after=yes
		continue
	fi
	packages "$word" >/dev/null
	if [[ $after ]]; then
		earlier+=("bin/test-$word.json")
	else
		parts+=("$word")
	fi
done
if [[ ${#parts[@]} == 0 ]]; then
	echo "usage: test.sh PART ... [after PART ...]" >&2
	exit 2
fi
mkdir -p bin
go build -o bin/tally ./test/tally
for part in "${parts[@]}"; do
	rm -f "bin/test-$part.json"
done
# A part that fails does not keep the next one from its turn.
run_all() {
	local part status=0
	for part in "${parts[@]}"; do
		run "$part" || status=1
	done
	return "$status"
}
run_all | bin/tally "${earlier[@]}"
