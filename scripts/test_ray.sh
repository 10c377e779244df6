#!/usr/bin/env bash
# test_ray.sh BUILD_FOLDER: bimetal.ray on real Ray clusters on this machine (docs/ray.md). Ends with a line that
# counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
build=$1
passed=0 failed=0 skipped=0

for file in tests/ray/test_*.py; do
  printf '\n== %s\n' "$file"
  log=$(mktemp)
  PYTHONPATH=$PWD/$build/python PYTHONDONTWRITEBYTECODE=1 timeout --kill-after 30 600 \
    .venv/bin/python "$file" 2>&1 | tee "$log"
  # unittest's last lines: "Ran 7 tests in 3.1s", and "OK (skipped=1)" or "FAILED (failures=1, errors=2)".
  ran=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in .*/\1/p' "$log" | tail -n 1)
  of() { tail -n 3 "$log" | sed -n "s/^\(OK\|FAILED\) (.*$1=\([0-9]*\).*/\2/p"; }
  if [ -z "$ran" ] || ! grep -Eq '^(OK|FAILED)' <(tail -n 3 "$log"); then
    echo "failed: $file did not come to its end"
    failed=$((failed + 1))
  else
    bad=$(($(of failures || true) + $(of errors || true) + 0)) off=$(of skipped)
    failed=$((failed + bad)) skipped=$((skipped + ${off:-0})) passed=$((passed + ran - bad - ${off:-0}))
  fi
  rm -f "$log"
done

closing_line "${BIMETAL_COUNTS:+tests on Ray}" "$passed" "$failed" "$skipped"
