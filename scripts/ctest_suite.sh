# ctest_suite.sh, to be sourced: runs CTest and adds what it counts to passed, failed and skipped.
passed=0 failed=0 skipped=0
reported=  # by the last suite: a run that has ended without a report is no test that could be tried again
figures=   # of that suite's tests, as count() leaves them

most_reruns=4

# count REPORT [FIGURES]: adds the results of one CTest run, read from its JUnit file. A suite of GoogleTest's counts its cases
# itself, in its last line (tests/support/test_main.cpp). With the figures of a run before, its results take the place of theirs.
count() {
  local added p f s
  added=$(python3 - "$1" "${2-}" <<'PY'
import re, sys, xml.etree.ElementTree as tree
before = {}
for line in sys.argv[2].splitlines()[1:]:
    name, *numbers = line.rsplit(" ", 4)
    before[name] = tuple(map(int, numbers))
added, lines = [0, 0, 0], []
for test in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    name, said = test.get("name"), test.findtext("system-out") or ""
    counted = re.search(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped\s*\Z", said, re.M)
    p, f, s = map(int, counted.groups()) if counted else (0, 0, 0)
    if test.get("status") == "fail" or name.endswith("_NOT_BUILT"):
        cases = re.findall(r"(\S+): FAILED\b", said)
        print("failed:", name, *cases, file=sys.stderr)
        f = max(f, 1)
    elif not counted:
        off = test.get("status") in ("notrun", "disabled", "skipped")
        p, s = (0, 1) if off else (1, 0)
    *first, was_counted = before.get(name, (0, 0, 0, 0))
    if was_counted and not counted:
        p, f, s = first  # a suite that breaks off now says nothing of its cases
    elif name in before and (was_counted or not counted) and s > first[2]:
        print("failed:", name, "skips now what had failed", file=sys.stderr)
        f, s = f + s - first[2], first[2]
    added = [total + new - old for total, new, old in zip(added, (p, f, s), first)]
    lines.append(f"{name} {p} {f} {s} {int(bool(counted))}")
print(*added)
print(*lines, sep="\n")
PY
  ) || { failed=$((failed + 1)); return; }
  figures=$added
  read -r p f s <<<"$added"
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
  local folder=$1 before=$2 now=$failed report
  [ -n "$reported" ] && [ "$now" -gt "$before" ] && [ "$now" -le $((before + most_reruns)) ] || return 0
  report=$(mktemp)
  printf '\n== once more, alone: what has failed\n'
  run_ctest "$folder" "$report" --rerun-failed -j 1
  [ ! -s "$report" ] || count "$report" "$figures"
  [ "$failed" -ge "$now" ] || echo "passed at the second try, alone: $((now - failed)) of $((now - before))"
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
  reported= figures=
  if [ -s "$report" ]; then
    reported=yes
    count "$report"
  fi
  rm -f "$report"
}
