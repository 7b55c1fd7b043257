#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Gets one of Debian's kernels, and prints the folder in which it lies:
#
#	fetch.sh SUITE SERIES VERSION
#
# SERIES is how the kernel's version begins (6.1.), or - for any; VERSION is the
# package's exact version. If the archive no longer has it, the newest of the
# series in the suite is taken, and that is said. In the folder are vmlinuz,
# the tree modules/ and the file release.
#
# apt does the work, with state of its own: its lists and settings are not
# those of this machine, which stay as they are, and it verifies what it loads by
# the archive's signature. A version that was loaded once needs no network.
set -euo pipefail

suite=$1 series=$2 version=$3
mirror=${EGRESSD_VM_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
flavour=cloud-amd64

if [[ -n ${XDG_CACHE_HOME-} || $(id -u) != 0 ]]; then
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/egressd-vm
else
	cache=/var/cache/egressd-vm
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

say() { echo "fetch.sh: $*" >&2; }

# kept prints the folder of a version, if it is complete.
kept() {
	local dir=$cache/$1
	[[ -e $dir/release ]] && echo "$dir"
}
kept "$version" && exit 0

apt=$cache/apt/$suite
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
# The machine's apt.conf.d stays in force, since it may name a proxy; hooks and
# indexes that others put there do not.
cat >"$apt/apt.conf" <<END
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large-hidpi;
#clear Acquire::IndexTargets::deb::DEP-11-icons-128x128@2;
END
log=$apt/log
if ! apt-get -c="$apt/apt.conf" -q update >"$log" 2>&1 </dev/null; then
	tail -n 5 "$log" >&2
	say "cannot read the list of $suite"
	exit 1
fi

# Lines of "version package" of all kernels of the series in the suite.
[[ $series != - ]] || series=
pattern="^linux-image-${series//./\\.}[0-9].*-$flavour\$"
mapfile -t offers < <(
	apt-cache -c="$apt/apt.conf" search --names-only "$pattern" | cut -d' ' -f1 |
		xargs -r apt-cache -c="$apt/apt.conf" show |
		awk '$1 == "Package:" { name = $2 } $1 == "Version:" { print $2, name }' | sort -V
)
if [[ ${#offers[@]} -eq 0 ]]; then
	say "$suite has no package like $pattern"
	exit 1
fi
image=
for offer in "${offers[@]}"; do
	[[ ${offer%% *} != "$version" ]] || image=${offer#* }
done
if [[ -z $image ]]; then
	newest=${offers[-1]}
	say "$suite no longer has ${version}: taking its newest, ${newest%% *}"
	version=${newest%% *} image=${newest#* }
	kept "$version" && exit 0
fi

# Newer packages keep the kernel and its modules apart.
packages=("$image=$version")
depends=$(apt-cache -c="$apt/apt.conf" show "$image=$version" | sed -n 's/^Depends: //p')
for part in binary modules; do
	name=linux-$part-${image#linux-image-}
	[[ $depends != *"$name "* ]] || packages+=("$name=$version")
done

work=$cache/work
rm -rf "$work"
mkdir -p "$work/debs" "$work/tree"
trap 'rm -rf "$work"' EXIT
say "loading ${packages[*]} from $suite"
if ! (cd "$work/debs" && apt-get -c="$apt/apt.conf" -q download "${packages[@]}" >"$log" 2>&1 </dev/null); then
	tail -n 5 "$log" >&2
	say "cannot load ${packages[*]}"
	exit 1
fi
for deb in "$work"/debs/*.deb; do
	dpkg-deb -x "$deb" "$work/tree"
done
release=${image#linux-image-}
mkdir "$work/out"
find "$work/tree" -name 'vmlinuz*' -exec mv {} "$work/out/vmlinuz" \;
find "$work/tree" -type d -path "*/lib/modules/$release" -prune -exec mv {} "$work/out/modules" \;
if [[ ! -e $work/out/vmlinuz || ! -d $work/out/modules/kernel ]]; then
	say "${packages[*]}: no kernel or no modules in there"
	exit 1
fi
dir=$cache/$version
rm -rf "$dir"
mv "$work/out" "$dir"
echo "$release" >"$dir/release"
echo "$dir"
