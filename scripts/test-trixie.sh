#!/usr/bin/env bash
# Runs the tests of rackweave.torch with Debian trixie's PyTorch, in a root of its own under build/trixie, which the first run
# makes; with the argument "root" it does only that. Needs root, for chroot and mounts; these are in a mount namespace of the
# script's and end with it. With RACKWEAVE_LONG=1 the frameworks on top of torch are installed there, too, and tested.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/trixie
if [ "${1:-}" != inside ]; then
	[ "$(id -u)" -eq 0 ] || exec sudo RACKWEAVE_LONG="${RACKWEAVE_LONG:-}" "$0" "$@"
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
	if [ -n "${RACKWEAVE_LONG:-}" ]; then
		# With all that they need and trixie lacks, but not with another torch.
		packages=(accelerate==1.6.0 transformers==4.51.3 lightning==2.5.1 huggingface-hub==0.30.2 tokenizers==0.21.1
			safetensors==0.5.3 regex==2024.11.6 tqdm==4.67.1 lightning-utilities==0.14.3 torchmetrics==1.7.1)
		if [ "$(cat "$root/packages" 2>/dev/null)" != "${packages[*]}" ]; then
			echo "installing ${packages[*]} into $root"
			"${PYTHON:-python3}" -m venv "$root.venv"
			"$root.venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --only-binary=:all: \
				--python-version 3.13 --platform "manylinux2014_$(uname -m)" \
				--target "$root/usr/local/lib/python3.13/dist-packages" "${packages[@]}"
			echo "${packages[*]}" >"$root/packages"
		fi
	fi
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
	-m unittest -v test_torch test_torch_sparse test_torch_models test_torch_faults test_torch_frameworks \
	test_launch.Launchers.test_the_same_script_runs_under_rackweave_run_and_torchrun \
	test_launch.Launchers.test_a_script_with_a_process_group_runs_under_torchrun
