#!/usr/bin/env bash
# test.sh BUILD_FOLDER: every test that needs nothing beyond `make setup-tests`. Ends with a line that
# counts them. The torch-free core is also tested under sanitizers (scripts/sanitizers.sh), which
# SANITIZERS=off leaves out.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
cores=$(getconf _NPROCESSORS_ONLN)
. scripts/ctest_suite.sh

case ${SANITIZERS:-on} in
  on | off) ;;
  *) echo "SANITIZERS is '$SANITIZERS'; it may be on or off" >&2; exit 2 ;;
esac

suite "unit and structure" "$build" -LE 'fault|serial|engines' -j "$cores"
rerun_failed "$build" 0

# part SUITE COMMAND…: one that may be left out where nothing that it depends on has changed (stamped.sh).
part() {
  local counts status=0 p f s
  counts=$(mktemp)
  BIMETAL_COUNTS=$counts scripts/stamped.sh "$@" || status=$?
  read -r p f s < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
  rm -f "$counts"
  if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

part test-jobs scripts/test_serial.sh "$build" jobs
part test-servers scripts/test_serial.sh "$build" servers
part test-backend scripts/test_serial.sh "$build" backend
if [ "${SANITIZERS:-on}" = on ]; then part sanitizers scripts/sanitizers.sh; fi

# Named where another script counts as well (.ci/run).
. scripts/closing_line.sh
closing_line "${BIMETAL_COUNTS:+tests}" "$passed" "$failed" "$skipped"
