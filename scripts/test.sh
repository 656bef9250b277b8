#!/usr/bin/env bash
# Everything that must hold, cheapest first. Packages run one at a time where they measure time or fill the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

step() { printf '\n== %s\n' "$*"; }

step "lint"
make --no-print-directory lint

step "pure packages, without C"
make --no-print-directory test-pure

step "all packages but the lab"
$go test -p 1 -timeout 30m $($go list ./... | grep -v '/lab$')

# The lab waits for emulated guests most of the time: it runs beside what measures no time.
lab_log=$(mktemp)
$go test -timeout 30m ./lab >"$lab_log" 2>&1 &
lab=$!
trap 'kill "$lab" 2>/dev/null; rm -f "$lab_log"' EXIT

step "race detector"
make --no-print-directory test-race

step "sanitizers"
make --no-print-directory test-sanitized

step "lab"
wait "$lab" || { cat "$lab_log"; exit 1; }
cat "$lab_log"
rm -f "$lab_log"
trap - EXIT

step "python"
make --no-print-directory --jobs=2 --output-sync=target test-python test-trixie
