#!/usr/bin/env bash
# Installs the Debian packages named that are missing, as root or with sudo, and says so. Usage: need.sh PACKAGE…
set -euo pipefail

missing=()
for package in "$@"; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing ${missing[*]}"
sudo=
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "these packages are missing, and installing them needs root or sudo: apt-get install -y ${missing[*]}" >&2
		exit 1
	fi
	sudo=sudo
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
# The package lists may be absent or old: fetch them only when that is what stands in the way.
if ! install; then
	$sudo apt-get update >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
	install || { cat "$log" >&2; exit 1; }
fi
# The go command does not see system headers, and would go on with what it built without these.
if [[ " ${missing[*]} " == *" libibverbs-dev "* ]]; then
	"${GO:-go}" clean -cache
fi
