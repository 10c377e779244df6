#!/usr/bin/env bash
# test_accelerator.sh DEVICE [BUILD_FOLDER]: the program's jobs and the Python package on an accelerator of this machine and a CPU beside
# it (docs/accelerators.md). Ends with a line that counts the tests. Without a build folder BIMETAL names the program, and PYTHONPATH has
# the package; PYTHON is the Python, if not that of .venv.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export BIMETAL_DEVICE=${1:?usage: test_accelerator.sh DEVICE [BUILD_FOLDER], as test_accelerator.sh cuda:0 build}
if [ -n "${2:-}" ]; then export BIMETAL=$PWD/$2/bimetal PYTHONPATH=$PWD/$2/python${PYTHONPATH:+:$PYTHONPATH}; fi

"${PYTHON:-.venv/bin/python}" scripts/device_report.py "$BIMETAL_DEVICE" --only-look >&2 || exit 2
for file in tests/accelerator/test_*.py; do
  unittest_file 1500 "$file"
done
closing_line "${BIMETAL_COUNTS:+tests on $BIMETAL_DEVICE}" "$passed" "$failed" "$skipped"
