#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment and trains the example with it, outside the repository.
# The environment sees the system's torch and scikit-learn.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/build-wheel.sh "$work"
"${PYTHON:-/usr/bin/python3}" -m venv --system-site-packages "$work/venv"
"$work/venv/bin/pip" -q install --no-index "$work"/rackweave-*.whl
[ -n "$(ls "$work"/rackweave-*-manylinux*.whl)" ]
env -u PYTHONPATH -u RACKWEAVE_LIBRARY "$work/venv/bin/python" -m rackweave
"$work/venv/bin/python" -m zipfile -l "$work"/rackweave-*.whl >"$work/files"
grep -q LICENSE "$work/files" || { echo "the wheel has no LICENSE" >&2; exit 1; }
tar -tzf "$work"/rackweave-*.tar.gz >"$work/sources"
if grep -q '\.so' "$work/sources" || ! grep -q cgo/library/mxnet.c "$work/sources"; then
	echo "the source distribution has no C code, or has a library" >&2
	exit 1
fi
if [ -n "${RACKWEAVE_LONG:-}" ]; then # compiles for a minute
	"$work/venv/bin/pip" -q wheel --no-deps --wheel-dir "$work/from-source" "$work"/rackweave-*.tar.gz
	"$work/venv/bin/python" -m zipfile -l "$work"/from-source/*.whl >"$work/files"
	grep -q librackweave.so "$work/files"
fi
cp examples/torch_digits.py "$work"
cd "$work"
env -u PYTHONPATH -u RACKWEAVE_LIBRARY "$repository/bin/rackweave" run -n 2 -- venv/bin/python torch_digits.py --epochs 1
