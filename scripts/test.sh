#!/usr/bin/env bash
# Everything that must hold, cheapest first.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} make='make --no-print-directory'

step() { printf '\n== %s\n' "$*"; }

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
trap '[ ${#pid[@]} = 0 ] || { kill -- "${pid[@]/#/-}" 2>/dev/null; rm -f "${log[@]}"; }' EXIT

# What only computes, and neither waits nor measures, takes the processors that other tests leave.
computing() {
	chrt --idle --pid 0 $BASHPID
	$make test-sanitized ONLY='%/aggregate %/cgo/kernel'
	$make test-race ONLY='%/aggregate'
	$make test-packages ONLY='%/lab/simrack %/bench/learn'
}

# Racks wait for shaped links, and membership for leases: they run beside what computes.
beside "racks and membership" $go test -vet=off -ldflags=-w -p 1 -timeout 30m ./lab/racks ./service/membership

step "lint"
$make lint

step "pure packages, without C"
$make test-pure

await "racks and membership"
beside "what computes" computing

step "packages with C, but the lab"
$make test-packages BUT='%/lab/simrack %/bench/learn'

await "what computes"

# The lab waits for emulated guests most of the time: it runs beside what measures no time, and fuzzing takes what is left.
beside lab $go test -vet=off -ldflags=-w -timeout 30m ./lab
beside fuzzing nice scripts/fuzz.sh 20000

step "race detector"
$make test-race BUT='%/aggregate'

step "sanitizers"
$make test-sanitized BUT='%/aggregate %/cgo/kernel'

step "python"
$make --jobs=2 --output-sync=target test-trixie test-python

await lab
await fuzzing
