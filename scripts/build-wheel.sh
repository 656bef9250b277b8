#!/usr/bin/env bash
# Builds the Python wheel with bin/librackweave.so.0 in it. Usage: build-wheel.sh OUTPUT-DIRECTORY
# Without pip and wheel for the Python in use, it makes a virtual environment that has them.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r python/pyproject.toml python/setup.py python/src "$work"
find "$work" -name __pycache__ -prune -exec rm -rf {} +
mkdir -p "$work/src/rackweave/_native"
cp bin/librackweave.so.0 "$work/src/rackweave/_native/"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q install 'setuptools>=61' wheel
(cd "$work" && venv/bin/pip -q wheel --no-deps --no-build-isolation --wheel-dir "$out" .)
ls "$out"/rackweave-*.whl
