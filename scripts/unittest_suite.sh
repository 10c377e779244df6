# unittest_suite.sh, to be sourced: runs a file of Python's unittest and adds what it counts to passed,
# failed and skipped.
passed=0 failed=0 skipped=0

# unittest_file SECONDS FILE [TEST…]: with the Python of .venv, or $PYTHON; ended after so many seconds, which is a failure.
unittest_file() {
  local seconds=$1 file=$2 log ran bad off
  shift 2
  printf '\n== %s\n' "$file${*:+ $*}"
  log=$(mktemp)
  PYTHONDONTWRITEBYTECODE=1 timeout --kill-after 30 "$seconds" "${PYTHON:-.venv/bin/python}" "$file" "$@" 2>&1 | tee "$log"
  # unittest's last lines: "Ran 7 tests in 3.1s", and "OK (skipped=1)" or "FAILED (failures=1, errors=2)".
  ran=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in .*/\1/p' "$log" | tail -n 1)
  of() { tail -n 3 "$log" | sed -n "s/^\(OK\|FAILED\) (.*$1=\([0-9]*\).*/\2/p"; }
  if [ -z "$ran" ] || ! grep -Eq '^(OK|FAILED)' <(tail -n 3 "$log"); then
    echo "failed: $file did not come to its end"
    failed=$((failed + 1))
  elif [ "$ran" -eq 0 ] && grep -q '^FAILED' <(tail -n 3 "$log"); then
    failed=$((failed + 1))  # setUpClass itself failed: an error without a test
  else
    bad=$(($(of failures || true) + $(of errors || true) + 0)) off=$(of skipped)
    failed=$((failed + bad)) skipped=$((skipped + ${off:-0})) passed=$((passed + ran - bad - ${off:-0}))
  fi
  rm -f "$log"
}
