#!/usr/bin/env bash
# test_extension_versions.sh [VERSION…]: the package built from its sources, with its extension, by pip as people do that, against releases
# of torch as pip installs them, CUDA builds without a toolkit included; then the tests of the package run on each. Without a version,
# those with which docs/install.md says that it has been run. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
. scripts/torch_versions.sh
versions=("$@")
if [ $# -eq 0 ]; then versions=(2.14.1 2.15.0); fi
beside_torch=("scikit-build-core>=0.11")
topics=(package collectives training zero tokens balance futures failures pipeline pipeline_behaviour tensor_behaviour tensor_parts)

# pip builds with the compiler and CMake that are there. A toolkit that this machine may have is not looked for.
build() {
  "$PYTHON" -m pip install --disable-pip-version-check --no-build-isolation --no-deps --no-cache-dir \
    -C build-dir="$places/build-$1" -C cmake.define.CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON . >"$places/log" 2>&1 && return
  tail -n 60 "$places/log"
  echo "failed: the package could not be built against torch $1"
  failed=$((failed + 1))
  return 1
}

use() {
  local topic
  build "$1" || return
  rm -rf "$places/build-$1"
  export OMP_NUM_THREADS=1
  PYTHONPATH=$(echo "$PWD/$2"/lib/python*/site-packages)
  export PYTHONPATH
  for topic in "${topics[@]}"; do unittest_file 900 "tests/python/test_$topic.py"; done
  unset PYTHONPATH OMP_NUM_THREADS
}

with_torches "extension versions" use "${versions[@]}"
