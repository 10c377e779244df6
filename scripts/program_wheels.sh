#!/usr/bin/env bash
# program_wheels.sh VERSION…: the program's wheel for each of these releases of torch, into dist/, built against it as pip installs it
# (CUDA builds without a toolkit included) and installed and used beside it (tests/install/test_program_wheel.py). The package's wheel is
# made, too. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
. scripts/torch_versions.sh
beside_torch=()
if [ $# -eq 0 ]; then
  echo "usage: scripts/program_wheels.sh VERSION…, such as 2.14.1 2.15.0" >&2
  exit 2
fi

# A toolkit that this machine may have is not looked for.
build() {
  cmake --preset release -B "$places/build" -DPython3_EXECUTABLE="$PWD/$PYTHON" -DBIMETAL_TESTS=OFF \
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON &&
    cmake --build "$places/build" --target bimetal bimetal_python && scripts/program_wheel.sh "$places/build/bimetal" "$PYTHON"
}

use() {
  if build; then
    PIP_CONSTRAINT=/dev/null unittest_file 900 tests/install/test_program_wheel.py  # for the same reason as in install_torch
  else
    echo "failed: the program's wheel for torch $1 could not be built"
    failed=$((failed + 1))
  fi
  rm -rf "$places/build"
}

scripts/wheels.sh "manylinux2014_$(uname -m)" || exit 1
with_torches "program wheels" use "$@"
