#!/usr/bin/env bash
# test_ray.sh BUILD_FOLDER: bimetal.ray on real Ray clusters on this machine (docs/ray.md). Ends with a line that
# counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export PYTHONPATH=$PWD/$1/python

for file in tests/ray/test_*.py; do unittest_file 600 "$file"; done
closing_line "${BIMETAL_COUNTS:+tests on Ray}" "$passed" "$failed" "$skipped"
