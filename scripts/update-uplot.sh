#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Brings uPlot, which draws the plots of the live page, into the tree, as its
# package on npm has it: the version below, whose contents must have the hash
# below. Whoever changes the one takes the other from
# `npm view uplot@VERSION dist.integrity`, and looks at what changed.
#
#	update-uplot.sh           write metrics/page/assets/uplot
#	update-uplot.sh --check   compare it with the package
set -euo pipefail
version=1.6.32
integrity=sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "uplot@$version" >/dev/null
got=sha512-$(openssl dgst -sha512 -binary "$work/uplot-$version.tgz" | base64 -w0)
if [[ $got != "$integrity" ]]; then
	echo "update-uplot.sh: uplot $version has hash $got, want $integrity" >&2
	exit 1
fi
tar -xzf "$work/uplot-$version.tgz" -C "$work"
mkdir "$work/uplot"
cp "$work/package/LICENSE" "$work/package/dist/uPlot.iife.min.js" "$work/package/dist/uPlot.min.css" "$work/uplot"
printf 'uPlot %s\n%s\n' "$version" "$integrity" >"$work/uplot/VERSION"

to=metrics/page/assets/uplot
if [[ ${1-} == --check ]]; then
	diff -r "$work/uplot" "$to"
	exit
fi
rm -rf "$to"
cp -r "$work/uplot" "$to"
