# ctest_suite.sh, to be sourced: runs CTest and adds what it counts to passed, failed and skipped.
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
