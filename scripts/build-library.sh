#!/usr/bin/env bash
# Builds the worker's data path and the transports as one shared library. Usage: build-library.sh OUTPUT
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
mkdir -p "$(dirname "$out")"
exports=$(mktemp)
trap 'rm -f "$exports"' EXIT
printf '{ global: rw_*; rwf_*; local: *; };\n' >"$exports"
case $(uname -m) in
x86_64) other=_arm64.c ;;
aarch64) other=_amd64.c ;;
*) other=_a??64.c ;;
esac
sources=()
for file in cgo/fabric/*.c cgo/fabric/*/*.c cgo/kernel/*.c cgo/worker/*.c; do
	case $file in
	*$other) ;; # the go tool leaves out other architectures' files by their names; so does this
	*) sources+=("$file") ;;
	esac
done
${CC:-cc} -shared -o "$out" -std=gnu11 -O2 -fPIC -ffp-contract=off -fno-strict-aliasing -Wall -Wextra -Werror \
	-Wl,-soname,"$(basename "$out")" -Wl,-z,defs -Wl,--version-script="$exports" \
	"${sources[@]}" -ldl -lpthread -lm
