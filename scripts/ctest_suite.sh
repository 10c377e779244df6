# ctest_suite.sh, to be sourced: runs CTest and adds what it counts to passed, failed and skipped.
passed=0 failed=0 skipped=0
reported=  # by the last suite: a run that has ended without a report is no test that could be tried again

most_reruns=4

# count REPORT: adds the results of one CTest run, read from its JUnit file. A suite of GoogleTest's counts its cases itself, in its
# last line (tests/support/test_main.cpp).
count() {
  local numbers
  numbers=$(python3 - "$1" <<'PY'
import re, sys, xml.etree.ElementTree as tree
passed = failed = skipped = 0
for test in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    said = test.findtext("system-out") or ""
    counted = re.search(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped\s*\Z", said, re.M)
    p, f, s = map(int, counted.groups()) if counted else (0, 0, 0)
    if test.get("status") == "fail" or test.get("name").endswith("_NOT_BUILT"):
        cases = re.findall(r"(\S+): FAILED\b", said)
        print("failed:", test.get("name"), *cases, file=sys.stderr)
        f = max(f, 1)
    elif not counted:
        off = test.get("status") in ("notrun", "disabled", "skipped")
        p, s = (0, 1) if off else (1, 0)
    passed, failed, skipped = passed + p, failed + f, skipped + s
print(passed, failed, skipped)
PY
  ) || { failed=$((failed + 1)); return; }
  read -r p f s <<<"$numbers"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# run_ctest FOLDER REPORT [CTest options]: what a test says is shortened in its midst, since its end counts.
run_ctest() {
  ctest --test-dir "$1" --output-on-failure --no-tests=error --output-junit "$2" --test-output-truncation middle "${@:3}"
}

# rerun_failed FOLDER BEFORE: runs the tests of the last suite that failed once more, one at a time, unless
# they are so many that the fault is plain; BEFORE: how many had failed before that suite. One that passes now is
# counted as passed, and named: it is to be looked into, but says little against the change at hand.
rerun_failed() {
  local folder=$1 before=$2 now=$failed was=$passed off=$skipped report
  [ -n "$reported" ] && [ "$now" -gt "$before" ] && [ "$now" -le $((before + most_reruns)) ] || return 0
  report=$(mktemp)
  printf '\n== once more, alone: what has failed\n'
  run_ctest "$folder" "$report" --rerun-failed -j 1
  if [ -s "$report" ]; then
    failed=$before
    count "$report"
    passed=$((was + now - failed)) skipped=$off  # what had passed beside it is counted already
  fi
  [ "$failed" -eq "$now" ] || echo "passed at the second try, alone: $((now - failed)) of $((now - before))"
  rm -f "$report"
}

# suite NAME FOLDER [CTest options]: runs a folder's tests; a run without any test is a failure.
suite() {
  local name=$1 folder=$2 report
  shift 2
  report=$(mktemp)
  printf '\n== %s\n' "$name"
  if ! run_ctest "$folder" "$report" "$@"; then
    [ -s "$report" ] || failed=$((failed + 1))
  fi
  reported=
  if [ -s "$report" ]; then
    reported=yes
    count "$report"
  fi
  rm -f "$report"
}
