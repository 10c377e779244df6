# ctest_suite.sh, to be sourced: runs CTest and adds what it counts to passed, failed and skipped.
passed=0 failed=0 skipped=0
reported=  # by the last suite: a run that has ended without a report is no test that could be tried again

most_reruns=4

# count REPORT: adds the results of one CTest run, read from its JUnit file.
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

# rerun_failed FOLDER BEFORE: runs the tests of the last suite that failed once more, one at a time, unless
# they are so many that the fault is plain; BEFORE: how many had failed before that suite. One that passes now is
# counted as passed, and named: it is to be looked into, but says little against the change at hand.
rerun_failed() {
  local folder=$1 before=$2 now=$failed report
  [ -n "$reported" ] && [ "$now" -gt "$before" ] && [ "$now" -le $((before + most_reruns)) ] || return 0
  report=$(mktemp)
  printf '\n== once more, alone: what has failed\n'
  ctest --test-dir "$folder" --rerun-failed --output-on-failure --no-tests=error --output-junit "$report" -j 1
  failed=$before
  count "$report"
  [ "$failed" -eq "$now" ] || echo "passed at the second try, alone: $((now - failed)) of $((now - before))"
  rm -f "$report"
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
  reported=
  if [ -s "$report" ]; then
    reported=yes
    count "$report"
  fi
  rm -f "$report"
}
