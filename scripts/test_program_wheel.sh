#!/usr/bin/env bash
# test_program_wheel.sh BUILD_FOLDER: the program's wheel, installed beside the package's into a clean environment and trained with
# there. Builds both first. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
scripts/wheels.sh "manylinux2014_$(uname -m)" || exit 1
scripts/program_wheel.sh "$1/bimetal" || exit 1
unittest_file 900 tests/install/test_program_wheel.py
closing_line "${BIMETAL_COUNTS:+program wheel}" "$passed" "$failed" "$skipped"
