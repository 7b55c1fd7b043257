#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs the Debian packages that a make target needs:
#
#	install-deps.sh demo|test|vm|bench|profile|generate|lint ...
#
# Quick and silent when everything is there. Servers that come with a package
# (nginx, haproxy, redis) are installed for tests to start by themselves; they
# are not started as services.
set -euo pipefail
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin

# What each target needs, as command=package, or python:module=package for a
# module that python3 can import: the first one in PATH, or Debian's own.
declare -A needs=(
	[demo]="python3=python3"
	[test]="gcc=gcc python3=python3 curl=curl wget=wget node=nodejs npm=npm nginx=nginx ip=iproute2 microsocks=microsocks danted=dante-server squid=squid tinyproxy=tinyproxy haproxy=haproxy python:requests=python3-requests python:socks=python3-socks python:httpx=python3-httpx python:socksio=python3-socksio python:aiohttp=python3-aiohttp python:scrapy=python3-scrapy python:h2=python3-h2 openssl=openssl chromium=chromium certutil=libnss3-tools promtool=prometheus tmux=tmux gnutls-cli=gnutls-bin nghttp=nghttp2-client nghttpd=nghttp2-server redis-server=redis-server faketime=faketime update-ca-certificates=ca-certificates"
	[bench]="gcc=gcc nginx=nginx haproxy=haproxy wrk=wrk curl=curl redis-server=redis-server"
	[generate]="clang-19=clang-19 llvm-strip-19=llvm-19"
	[profile]="perf=linux-perf"
	[vm]="qemu-system-x86_64=qemu-system-x86 xz=xz-utils curl=curl wget=wget dpkg-deb=dpkg"
	[lint]="gcc=gcc shellcheck=shellcheck clang-format-19=clang-format-19"
)
# Targets that work without what they need, only less well.
declare -A works_without=(
	[demo]="the demo uses its own workers, written in Go, instead of python3"
)

# without lists those of the modules "$2" ... that python "$1" cannot import.
without() {
	"$1" -c 'import sys
from importlib.util import find_spec
print(*(m for m in sys.argv[1:] if find_spec(m) is None))' "${@:2}" 2>/dev/null || echo "${@:2}"
}

missing=()
fallbacks=()
modules=()
for target in "$@"; do
	if [[ -z ${needs[$target]-} ]]; then
		echo "install-deps.sh: unknown target $target" >&2
		exit 2
	fi
	for need in ${needs[$target]}; do
		if [[ $need == python:* ]]; then
			modules+=("${need#python:}")
			continue
		fi
		command -v "${need%%=*}" >/dev/null || missing+=("${need#*=}")
	done
	fallbacks+=("${works_without[$target]-}")
done
# One python has to have them all. Packages are for Debian's own.
if [[ ${#modules[@]} -gt 0 && -n $(without python3 "${modules[@]%%=*}") ]]; then
	lacking=" $(without /usr/bin/python3 "${modules[@]%%=*}") "
	for need in "${modules[@]}"; do
		[[ $lacking != *" ${need%%=*} "* ]] || missing+=("${need#*=}")
	done
fi
# A compiler without the C library's headers cannot build the race detector's
# part of the tests.
if [[ " $* " == *" test "* && ! -e /usr/include/stdlib.h ]]; then
	missing+=(libc6-dev)
fi
# browse brings what tests in a real browser need besides packages.
browse() {
	[[ " $* " != *" test "* ]] || "$(dirname "$0")/playwright.sh" >/dev/null
}
if [[ ${#missing[@]} == 0 ]]; then
	browse "$@"
	exit
fi

# give_up ends the script: well, if every target can do without.
give_up() {
	local text
	for text in "${fallbacks[@]}"; do
		if [[ -z $text ]]; then
			echo "install-deps.sh: $1: install these packages yourself: ${missing[*]}" >&2
			exit 1
		fi
	done
	printf 'note: %s\n' "${fallbacks[@]}" >&2
	exit 0
}

command -v apt-get >/dev/null || give_up "no apt-get here"
sudo=()
if [[ $(id -u) != 0 ]]; then
	command -v sudo >/dev/null || give_up "not root and no sudo"
	sudo=(sudo)
fi

# Keep packaged services from starting, as long as nobody else decides it.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
	# shellcheck disable=SC2064 # the words are meant to expand now
	trap "${sudo[*]} rm -f $policy" EXIT
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
	"${sudo[@]}" chmod +x $policy
fi

echo "installing ${missing[*]} ..." >&2
log=$(mktemp)
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null >>"$log" 2>&1; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
	tail -n 20 "$log" >&2
	rm -f "$log"
	give_up "apt-get failed"
fi
rm -f "$log"
browse "$@"
