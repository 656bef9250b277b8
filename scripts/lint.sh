#!/usr/bin/env bash
# The form of the code: layout, and what static analysis finds. Nothing is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "run gofmt -w on:" $unformatted; exit 1; }
GOGC=800 $go tool staticcheck ./... # it ends before a collection pays

clang-format --dry-run -Werror $(git ls-files '*.c' '*.h')
# That a function's argument is not set yet is often why it is given.
cppcheck --quiet --std=c11 -j 2 --enable=warning,performance,portability --error-exitcode=1 --inline-suppr -I. \
	--suppress=missingIncludeSystem --suppress=ctuuninitvar --library=scripts/cppcheck.cfg \
	$(git ls-files '*.c')
