#!/usr/bin/env bash
# Builds librackweave, the worker's data path with a C interface (include/rackweave.h), as a shared library.
# Usage: build-library.sh OUTPUT. CFLAGS is added to the compiler's flags, for all but the kernels if KERNEL_CFLAGS is set.
# Kernels take most of the time. Objects stay in build/objects for a week, by the hash of what they are compiled from.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
mkdir -p "$(dirname "$out")"
case $(uname -m) in
x86_64) other=_arm64.c ;;
aarch64) other=_amd64.c ;;
*) other=_a??64.c ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CC=${CC:-cc} objects=build/objects
mkdir -p $objects
find $objects -type f -mtime +7 -delete

# object OUTPUT SOURCE FLAG… compiles a file, or takes its object from those that are there.
object() {
	local hash kept
	hash=$({ $CC --version && echo "${@:3}" && $CC "${@:3}" -E "$2"; } | sha256sum)
	kept=$objects/${hash%% *}
	if [ ! -e "$kept" ]; then
		$CC "${@:3}" -c -o "$1" "$2" && cp "$1" "$1.new" && mv "$1.new" "$kept"
	else
		cp "$kept" "$1"
	fi
}
export -f object
flags=(-I. -std=gnu11 -O3 -fPIC -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden -Wall -Wextra -Werror)
for file in cgo/kernel/*.c cgo/fabric/*.c cgo/fabric/*/*.c cgo/worker/*.c cgo/library/*.c; do
	extra=${CFLAGS:-}
	case $file in
	*$other) continue ;; # the go tool leaves out other architectures' files by their names; so does this
	cgo/fabric/simfabric/*) continue ;; # a provider for tests
	cgo/kernel/*) extra=${KERNEL_CFLAGS-$extra} ;;
	esac
	echo "set -o pipefail; object $work/${file//\//.}.o $file ${flags[*]} $extra"
done | xargs -P "$(nproc)" -d '\n' -n 1 bash -c
printf '{ global: rw_*; local: *; };\n' >"$work/exports"
# nodelete: its threads and fork handlers outlive whoever loaded it.
$CC -shared -o "$out" "${flags[@]}" ${CFLAGS:-} -Wl,-soname,librackweave.so.0 -Wl,-z,defs -Wl,-z,nodelete \
	-Wl,--version-script="$work/exports" "$work"/*.o -Wl,--as-needed -ldl -lpthread -lm
