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

step "all packages"
$go test -p 1 -timeout 30m ./...

step "race detector"
make --no-print-directory test-race

step "sanitizers"
make --no-print-directory test-sanitized

step "python"
make --no-print-directory test-python test-trixie
