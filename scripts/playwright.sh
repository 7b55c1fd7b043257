#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Prints the folder that has what tests in a real browser need, as
# test/e2e/playwright/package-lock.json pins it. What is not there yet is
# installed: from the npm registry, into the user's cache, without a browser (the
# tests use Debian's).
set -euo pipefail
cd "$(dirname "$0")/../test/e2e/playwright"

lock=$(sha256sum package.json package-lock.json | sha256sum | cut -c1-16)
base=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/egressd
dir=$base/playwright-$lock
if [[ ! -e $dir/complete ]]; then
	mkdir -p "$base"
	work=$(mktemp -d "$base/installing.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cp package.json package-lock.json "$work"
	PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
	touch "$work/complete"
	# Somebody else may have been quicker.
	mv -T "$work" "$dir" 2>/dev/null || [[ -e $dir/complete ]]
fi
echo "$dir"
