#!/usr/bin/env bash
# Everything that must hold, cheapest first.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

step() { printf '\n== %s\n' "$*"; }

declare -A log pid

# beside NAME COMMAND… runs a command in the background, until await NAME.
beside() {
	log[$1]=$(mktemp)
	"${@:2}" >"${log[$1]}" 2>&1 &
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
trap '[ ${#pid[@]} = 0 ] || { kill "${pid[@]}" 2>/dev/null; rm -f "${log[@]}"; }' EXIT

# Racks wait for shaped links, and membership for leases: they run beside what computes.
beside "racks and membership" $go test -p 1 -timeout 30m ./lab/racks ./service/membership

step "lint"
make --no-print-directory lint

step "pure packages, without C"
make --no-print-directory test-pure

await "racks and membership"

step "packages with C, but the lab"
make --no-print-directory test-packages

# The lab waits for emulated guests most of the time: it runs beside what measures no time, and fuzzing takes what is left.
beside lab $go test -timeout 30m ./lab
beside fuzzing nice scripts/fuzz.sh 20000

step "race detector"
make --no-print-directory test-race

step "sanitizers"
make --no-print-directory test-sanitized

await lab
await fuzzing

step "python"
make --no-print-directory --jobs=2 --output-sync=target test-trixie test-python
