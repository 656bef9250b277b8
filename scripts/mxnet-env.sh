#!/usr/bin/env bash
# Makes the virtual environment that MXNet 1.9.1 runs in, once, and says so. Usage: mxnet-env.sh [DIRECTORY]
# numpy 1.23.5 is the last that MXNet 1.9.1 accepts unpatched; no wheel of it is for Python 3.12 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-build/mxnet-venv}
packages=(mxnet==1.9.1 numpy==1.23.5 scikit-learn==1.5.2 pytest==8.3.3)
[ "$(cat "$dir/packages" 2>/dev/null)" = "${packages[*]}" ] && exit 0

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info < (3, 12))' 2>/dev/null; }
python=
for candidate in ${PYTHON:-} python3 python3.11 python3.10 python3.9 python3.8 /usr/bin/python3; do
	if suits "$candidate"; then
		python=$candidate
		break
	fi
done
if [ -z "$python" ]; then
	echo "no Python from 3.8 to 3.11 with the venv module is here, and MXNet 1.9.1 needs one: apt-get install -y python3-venv, or set PYTHON" >&2
	exit 1
fi
echo "installing ${packages[*]} for $("$python" --version) into $dir"
rm -rf "$dir"
"$python" -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
echo "${packages[*]}" >"$dir/packages"
