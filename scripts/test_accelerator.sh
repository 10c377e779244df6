#!/usr/bin/env bash
# test_accelerator.sh DEVICE [BUILD_FOLDER]: the program's jobs and the Python package on an accelerator of this machine and a CPU beside
# it (docs/accelerators.md). Ends with a line that counts the tests. BIMETAL names another program, PYTHON another Python.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export BIMETAL_DEVICE=$1
[ -z "${2:-}" ] || export BIMETAL=${BIMETAL:-$PWD/$2/bimetal} PYTHONPATH=${PYTHONPATH:-$PWD/$2/python}

for file in tests/accelerator/test_*.py; do
  unittest_file 1500 "$file"
done
closing_line "${BIMETAL_COUNTS:+tests on $BIMETAL_DEVICE}" "$passed" "$failed" "$skipped"
