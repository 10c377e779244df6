#!/usr/bin/env bash
# test_wheel_versions.sh [VERSION…]: the Linux wheel of dist/ (make wheels) with releases of torch as people install them, used
# there by several ranks; one that is too old is refused. Without a version, from the oldest to the newest, those that people have:
# docs/install.md says with which it has been run. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
. scripts/torch_versions.sh
versions=("$@")
if [ $# -eq 0 ]; then versions=(2.3.1 2.4.1 2.8.0 2.11.0 2.13.0 2.14.1 2.15.0); fi
beside_torch=()

wheels=(dist/bimetal-*-py3-none-manylinux2014_"$(uname -m)".whl)
if [ ! -e "${wheels[0]}" ] || [ ${#wheels[@]} -ne 1 ]; then
  echo "error: dist/ has not exactly one wheel for this system: make wheels" >&2
  exit 1
fi
rm -rf "$places"
mkdir "$places"
python3 -m zipfile -e "${wheels[0]}" "$places/wheel"

# What the wheel has, by tests that the torch library passes, too: those in which torch takes part.
use() {
  case $1 in
    1.* | 2.[0-3].*) unittest_file 600 tests/install/test_wheels.py TooOld; return ;;
  esac
  unittest_file 600 tests/install/test_wheels.py Installed
  export PYTHONPATH=$PWD/$places/wheel OMP_NUM_THREADS=1
  unittest_file 300 tests/python/test_collectives.py Collectives.test_two_ranks
  unittest_file 300 tests/python/test_library.py Library.test_process_groups
  unittest_file 300 tests/python/test_balance.py SampleExact.test_unequal_shares SampleExact.test_moving_shares Sampler
  unittest_file 300 tests/python/test_tokens.py TokenExact.test_unequal_shares
  unittest_file 300 tests/python/test_training.py Training.test_two_ranks
  unset PYTHONPATH OMP_NUM_THREADS
}

with_torches "wheel versions" use "${versions[@]}"
