#!/usr/bin/env bash
# test_ray.sh BUILD_FOLDER: bimetal.ray on real Ray clusters on this machine (docs/ray.md). Ends with a line that
# counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/install_ray.sh || exit 1
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export PYTHONPATH=$PWD/$1/python

for file in tests/ray/test_*.py; do
  before=("$passed" "$failed" "$skipped")
  unittest_file 600 "$file"
  # Clusters of several nodes on one small machine come up late now and then: a second try, named.
  if [ "$failed" -gt "${before[1]}" ]; then
    echo "once more: $file"
    passed=${before[0]} failed=${before[1]} skipped=${before[2]}
    unittest_file 600 "$file"
  fi
done
closing_line "${BIMETAL_COUNTS:+tests on Ray}" "$passed" "$failed" "$skipped"
