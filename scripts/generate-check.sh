#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Regenerates everything in a copy of the source tree and compares, byte by
# byte. The copy lies in another folder, so a path that leaks into an object
# shows as well.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/committed" "$work/rebuilt"
git ls-files -z --cached --others --exclude-standard |
	while IFS= read -r -d '' file; do
		[[ ! -e $file ]] || printf '%s\0' "$file"
	done |
	tar --null -cf - -T - | tee >(tar -xf - -C "$work/committed") | tar -xf - -C "$work/rebuilt"

# Remove what is generated, so that a file which no source yields any more
# is missed.
mapfile -d '' generated < <(find "$work/rebuilt/loader" -name '*_bpfel*' -print0)
if [[ ${#generated[@]} == 0 ]]; then
	echo "generate-check: no generated file in loader/" >&2
	exit 1
fi
generated+=("$work/rebuilt/docs/METRICS.md" "$work/rebuilt/metrics/dashboard/node-egress.json")
rm "${generated[@]}"
(cd "$work/rebuilt" && go generate ./...)
if ! diff -rq "$work/committed" "$work/rebuilt"; then
	echo "generate-check: generated files differ from their sources: run make generate and commit the result" >&2
	exit 1
fi
echo "generate-check: ${#generated[@]} generated files are up to date"
