#!/usr/bin/env bash
# Runs the tests of rackweave.torch with Debian trixie's PyTorch, in a root of its own under build/trixie, which the first run
# makes; with the argument "root" it does only that. Needs root, for chroot and mounts; these are in a mount namespace of the
# script's and end with it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/trixie
if [ "${1:-}" != inside ]; then
	[ "$(id -u)" -eq 0 ] || exec sudo "$0" "$@"
	if [ ! -e "$root/complete" ]; then
		echo "making a Debian trixie root with python3-torch in $root"
		rm -rf "$root"
		mkdir -p "$root"
		debootstrap --variant=minbase --include=python3-torch,python3-numpy trixie "$root" \
			>"$root.log" 2>&1 ||
			{ tail -n 20 "$root.log" >&2; exit 1; }
		touch "$root/complete"
	fi
	[ "${1:-}" = root ] && exit
	exec unshare --mount --propagation private "$0" inside
fi
tree=$root/tree
mkdir -p "$tree" "$root/sys"
mount --bind . "$tree"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
exec chroot "$root" env -C /tree/python/tests PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=../src \
	RACKWEAVE_LIBRARY=/tree/bin/librackweave.so.0 python3 -W ignore::ResourceWarning \
	-m unittest -v test_torch test_torch_models test_torch_faults \
	test_launch.Launchers.test_the_same_script_runs_under_rackweave_run_and_torchrun \
	test_launch.Launchers.test_a_script_with_a_process_group_runs_under_torchrun
