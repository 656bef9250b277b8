#!/usr/bin/env bash
# Builds librackweave, the worker's data path with a C interface (include/rackweave.h), as a shared library.
# Usage: build-library.sh OUTPUT. CFLAGS is added to the compiler's flags.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
mkdir -p "$(dirname "$out")"
case $(uname -m) in
x86_64) other=_arm64.c ;;
aarch64) other=_amd64.c ;;
*) other=_a??64.c ;;
esac
sources=()
for file in cgo/fabric/*.c cgo/fabric/*/*.c cgo/kernel/*.c cgo/worker/*.c cgo/library/*.c; do
	case $file in
	*$other) ;; # the go tool leaves out other architectures' files by their names; so does this
	*) sources+=("$file") ;;
	esac
done
flags=(-I. -std=gnu11 -O3 -fPIC -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden -Wall -Wextra -Werror)
exports=$(mktemp)
trap 'rm -f "$exports"' EXIT
printf '{ global: rw_*; local: *; };\n' >"$exports"
# nodelete: its threads and fork handlers outlive whoever loaded it.
${CC:-cc} -shared -o "$out" "${flags[@]}" ${CFLAGS:-} -Wl,-soname,librackweave.so.0 -Wl,-z,defs -Wl,-z,nodelete \
	-Wl,--version-script="$exports" "${sources[@]}" -Wl,--as-needed -ldl -lpthread -lm
