#!/usr/bin/env bash
# Runs every fuzz target so many times, and says how many executions that were in all. Targets of which each execution is many
# calls run a hundredth as often, and at least 200 times: fewer would run only the kept inputs. (go test takes a time as well, and
# may then fail when it is over.)
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} each=${1:?how often}

slow='^FuzzCall'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
total=0
while IFS=: read -r file target; do
	times=$each
	[[ $target =~ $slow ]] && times=$((each > 20000 ? each / 100 : 200))
	$go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${times}x" -fuzzminimizetime 10x -parallel 1 \
		</dev/null >"$log" 2>&1 || { cat "$log"; exit 1; }
	n=$(grep -o 'execs: [0-9]*' "$log" | tail -1 | tr -dc 0-9)
	printf '%-56s %9d\n' "$target" "$n"
	total=$((total + n))
done < <(git grep -o '^func Fuzz[A-Za-z0-9]*' -- '*_test.go' | sed 's/func //')
echo "$total executions"
