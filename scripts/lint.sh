#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Checks the style of everything that is written here by hand. All checks run
# even if one fails. The argument is the staticcheck to run, as module@version.
set -uo pipefail
staticcheck=${1:?usage: lint.sh STATICCHECK@VERSION}
cd "$(dirname "$0")/.." || exit 1

failed=()
check() {
	local name=$1
	shift
	if ! "$@"; then
		echo "lint: $name failed" >&2
		failed+=("$name")
	fi
}
tracked() { git ls-files --cached --others --exclude-standard -- "$@"; }

gofmt_clean() {
	local unformatted
	unformatted=$(tracked '*.go' | xargs -r gofmt -s -l) || return 1
	if [[ -n $unformatted ]]; then
		printf 'not formatted:\n%s\n' "$unformatted" >&2
		return 1
	fi
}
own_c_sources() { tracked 'bpf/*.c' 'bpf/*.h' | grep -v '^bpf/headers/'; }
shell_scripts() { tracked '*.sh' '.ci/run'; }

check gofmt gofmt_clean
check vet go vet ./...
check 'vet of the comparison' go -C test/bench/limiters vet .
check staticcheck go run "$staticcheck" ./...
mapfile -t scripts < <(shell_scripts)
check shellcheck shellcheck "${scripts[@]}"
mapfile -t sources < <(own_c_sources)
check clang-format clang-format-19 --dry-run -Werror "${sources[@]}"

[[ ${#failed[@]} == 0 ]] || exit 1
