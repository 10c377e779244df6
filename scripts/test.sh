#!/usr/bin/env bash
# test.sh BUILD_FOLDER: every test that needs nothing beyond `make setup`. Ends with a line that
# counts them. With SANITIZERS=on the torch-free core is built and tested under TSan and ASan+UBSan too.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
passed=0 failed=0 skipped=0

# count LOG: adds the results of one CTest run, read from its JUnit file.
count() {
  local numbers
  numbers=$(python3 - "$1" <<'PY'
import sys, xml.etree.ElementTree as tree
cases = list(tree.parse(sys.argv[1]).getroot().iter("testcase"))
bad = [c.get("name") for c in cases if c.get("status") == "fail"]
off = [c.get("name") for c in cases if c.get("status") in ("notrun", "disabled", "skipped")]
for name in bad:
    print("failed:", name, file=sys.stderr)
print(len(cases) - len(bad) - len(off), len(bad), len(off))
PY
  ) || { failed=$((failed + 1)); return; }
  read -r p f s <<<"$numbers"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# suite NAME FOLDER [CTest options]: runs a folder's tests; a run without any test is a failure.
suite() {
  local name=$1 folder=$2 report
  shift 2
  report=$(mktemp)
  printf '\n== %s\n' "$name"
  if ! ctest --test-dir "$folder" --output-on-failure --no-tests=error --output-junit "$report" "$@"; then
    [ -s "$report" ] || failed=$((failed + 1))
  fi
  [ -s "$report" ] && count "$report"
  rm -f "$report"
}

suite "unit and structure" "$build" -LE 'fault|serial' -j "$(getconf _NPROCESSORS_ONLN)"
# These start whole jobs and watch processes come and go: one at a time, so that they don't starve.
suite "faults and whole jobs" "$build" -L 'fault|serial'

if [ "${SANITIZERS:-off}" = on ]; then
  for preset in tsan asan-ubsan; do
    if scripts/build.sh "build-$preset" "$preset" all; then
      suite "core under $preset" "build-$preset" -j "$(getconf _NPROCESSORS_ONLN)"
    else
      echo "failed: build of $preset"
      failed=$((failed + 1))
    fi
  done
fi

printf '\n%d passed, %d failed' "$passed" "$failed"
[ "$skipped" -gt 0 ] && printf ', %d skipped' "$skipped"
printf '\n'
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
