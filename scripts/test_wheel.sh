#!/usr/bin/env bash
# test_wheel.sh: the Python package as a wheel: built, installed, used (docs/python.md). Ends with a line that counts
# the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh

.venv/bin/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' || exit 1
unittest_file 3000 tests/install/test_wheel.py
closing_line "${BIMETAL_COUNTS:+wheel}" "$passed" "$failed" "$skipped"
