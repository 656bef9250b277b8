#!/usr/bin/env bash
# Everything that must hold. Usage: test.sh PACKAGE…, the Debian packages that tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} make='make --no-print-directory'

step() { printf '\n== %s, after %d s\n' "$*" $SECONDS; }

declare -A log pid

# beside NAME COMMAND… runs a command in the background, until await NAME.
beside() {
	log[$1]=$(mktemp)
	set -m # a process group of its own, which can be ended whole
	"${@:2}" >"${log[$1]}" 2>&1 </dev/null &
	set +m
	pid[$1]=$!
}

await() {
	local rc=0
	step "$1"
	wait "${pid[$1]}" || rc=$?
	cat "${log[$1]}"
	rm -f "${log[$1]}"
	unset "log[$1]" "pid[$1]"
	return $rc
}

# leave ends what still runs, and prints the last of what it has said: a step may have failed that nobody has awaited yet.
leave() {
	local name
	for name in "${!pid[@]}"; do
		kill -- "-${pid[$name]}" 2>/dev/null || true
		step "$name, to its end"
		tail -n 20 "${log[$name]}"
		rm -f "${log[$name]}"
	done
}
trap leave EXIT

# at_leisure has a command take the processors that others leave.
at_leisure() {
	chrt --idle --pid 0 $BASHPID
	"$@"
}

# What only computes, and neither waits nor measures.
computing() {
	$make lint
	$make test-sanitized ONLY=%/cgo/kernel
	$make test-packages ONLY='%/lab/simrack %/study/learn'
}

scripts/need.sh "$@"

# The lab takes longest, and waits for emulated guests: it runs beside what measures no time.
beside lab $go test -vet=off -ldflags=-w -timeout 30m -v ./lab
beside frameworks $make frameworks

step "vet"
$make vet

beside "what computes" at_leisure computing

step "pure packages, without C"
$make test-pure

await frameworks

step "race detector"
$make test-race

step "sanitizers"
$make test-sanitized BUT=%/cgo/kernel

step "python"
$make --jobs=2 --output-sync=target test-python

await lab

# These wait, for shaped links, leases, timeouts and processes, more than they compute: several run beside what computes.
waiting='%/client %/service %/cmd/rackweave %/include %/lab/attacks %/lab/racks %/service/membership'
step "packages that wait"
$make test-packages ABREAST=3 ONLY="$waiting"
step "packages with C, but the lab"
$make test-packages ABREAST=2 BUT="$waiting %/lab/simrack %/study/learn"

await "what computes"
