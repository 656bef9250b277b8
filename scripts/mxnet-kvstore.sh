#!/usr/bin/env bash
# Runs MXNet's own kvstore tests with RackWeave in its store's place, and prints a line for each.
# Usage: mxnet-kvstore.sh CHECKOUT [WORKERS…]
# CHECKOUT is of apache/mxnet at tag 1.9.1; WORKERS are numbers of workers, by default 4 and 7.
# KEEP=FOLDER keeps what failing tests print.
set -euo pipefail
checkout=$(cd "${1:?give a checkout of apache/mxnet at tag 1.9.1}" && pwd)
shift
cd "$(dirname "$0")/.."
root=$PWD python=$PWD/build/mxnet-venv/bin/python
[ -x "$python" ] || { echo "build/mxnet-venv is missing: run scripts/mxnet-env.sh" >&2; exit 1; }
[ $# -gt 0 ] || set -- 4 7
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The tests are changed in three places: our package is imported, the store's name is ours, and a shape that Python 3 makes of
# floats, which MXNet refuses, is of integers.
take() { # FILE FROM TO
	sed -E "s/^import mxnet as mx$/import rackweave.mxnet\n&/; s:num_rows/2,:num_rows//2,:; s/kv\.create\(($2)?\)/kv.create('$3')/" \
		"$checkout/tests/$1" >"$dir/$(basename "$1")"
}
take nightly/dist_sync_kvstore.py "'dist_sync'" dist_sync_rackweave
take nightly/dist_async_kvstore.py "'dist_async'" dist_async_rackweave
take nightly/test_kvstore.py none dist_sync_rackweave
mkdir "$dir/unit" "$dir/unit/nose"
cp "$checkout"/tests/python/unittest/common.py "$checkout"/tests/python/common/models.py "$dir/unit"
# What the unit tests use of nose, which Python 3.10 and later cannot import.
printf '' >"$dir/unit/nose/__init__.py"
printf 'import functools, unittest\nassert_raises = unittest.TestCase().assertRaises\nmake_decorator = functools.wraps\n' \
	>"$dir/unit/nose/tools.py"
take python/unittest/test_kvstore.py "'device'|'local'" dist_sync_rackweave
mv "$dir/test_kvstore.py" "$dir/unit"
take nightly/test_kvstore.py none dist_sync_rackweave

export PYTHONPATH=$root/python/src:$dir/unit RACKWEAVE_LIBRARY=$root/bin/librackweave.so.0
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MXNET_USE_OPERATOR_TUNING=0
cd "$dir"
failed=0
run() { # NAME WORKERS COMMAND…
	if timeout 600 "$root/bin/rackweave" run -n "$2" -- "$python" "${@:3}" >"$dir/log" 2>&1; then
		echo "ok    $1"
	else
		echo "FAIL  $1: $(grep -E -m 1 '^\[[0-9]+\] (E  +)?[A-Za-z_.]*(Error|Exception)\b' "$dir/log")"
		[ -z "${KEEP:-}" ] || cp "$dir/log" "$KEEP/$(tr ' /' '__' <<<"$1").log"
		failed=1
	fi
}

for workers; do
	for how in --type={gluon_step_cpu,gluon_sparse_step_cpu,invalid_cpu,gluon_type_cpu} '' --no-multiprecision \
		--type=compressed_cpu '--type=compressed_cpu --no-multiprecision'; do
		run "dist_sync_kvstore.py $how, $workers workers" "$workers" dist_sync_kvstore.py $how
	done
	run "dist_async_kvstore.py, $workers workers" "$workers" dist_async_kvstore.py
done
cd "$dir/unit"
for test in $(sed -n 's/^def \(test_[a-z_]*\)(.*/\1/p' test_kvstore.py); do
	run "unittest/test_kvstore.py $test" 1 -m pytest -q -p no:cacheprovider "test_kvstore.py::$test"
done
exit $failed
