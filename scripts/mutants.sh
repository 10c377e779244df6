#!/usr/bin/env bash
# mutants.sh [test|quick] [BUILD] [PATTERN]: seeds one fault after the other (scripts/mutants.txt), builds, and runs the tests that
# `make test` (or `make quick`) has of what the fault reaches. A fault that no test finds is named; then the status is 1. PATTERN:
# only faults whose line has it. The files are put back whatever happens; they must have no changes before.
set -uo pipefail
cd "$(dirname "$0")/.."
level=${1:-test} build=${2:-build} pattern=${3:-.}
caught=0 survivors=()

restore() { git checkout --quiet -- src python; }
trap restore EXIT
if [ -n "$(git status --porcelain -- src python)" ]; then
  echo "error: src or python has changes that are not committed; faults are seeded in what is" >&2
  trap - EXIT
  exit 2
fi

while IFS=$'\t' read -r file change why; do
  case $file in '' | '#'*) continue ;; esac
  [[ $file$change$why =~ $pattern ]] || continue
  restore
  sed -i -E "$change" "$file"
  if git diff --quiet -- "$file"; then
    echo "error: scripts/mutants.txt: '$change' changes nothing in $file" >&2
    exit 2
  fi
  printf '\n== %s: %s\n' "$file" "$why"
  # `reached` of what `make test` runs, the nearest first, until one fails.
  if [ "$level" = quick ]; then run=(quick "$build"); else run=(test "$build" --reached); fi
  if scripts/run_tests.py "${run[@]}" --once >"/tmp/mutant.$$" 2>&1; then
    survivors+=("$file: $why")
    echo "SURVIVED"
  else
    caught=$((caught + 1))
    grep -m 3 '^failed:\|the build fails' "/tmp/mutant.$$" || tail -n 3 "/tmp/mutant.$$"
  fi
  rm -f "/tmp/mutant.$$"
done <scripts/mutants.txt

printf '\n%d faults were caught, %d survived\n' "$caught" "${#survivors[@]}"
printf '  %s\n' "${survivors[@]}"
[ "${#survivors[@]}" -eq 0 ] && [ "$caught" -gt 0 ]
