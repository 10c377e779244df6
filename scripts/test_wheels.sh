#!/usr/bin/env bash
# test_wheels.sh: the wheels of `make wheels`: what is in them, the Linux one in an environment of its own, the
# libraries of all systems that can be run here in one group, and torch's ways to cut models on the Linux one's. Ends with
# a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh
scripts/wheels.sh || exit 1
build=$PWD/build-portability
peers=$build/peers

# The very libraries that are in the wheels, each beside the program that uses it.
from_wheel() {
  local tag=$1 system=$2
  rm -rf "${peers:?}/$system"
  mkdir -p "$peers/$system"
  cp "$build/library-$system/capi/"capi_peer* "$peers/$system/" &&
    python3 -m zipfile -e dist/bimetal-*-py3-none-"$tag".whl "$peers/$system/wheel" &&
    find "$peers/$system/wheel/bimetal" \( -name 'libbimetal_core.*' -o -name '*.exe' -o -name bimetal_lite \) -exec cp {} "$peers/$system/" \; &&
    chmod +x "$peers/$system/"bimetal_lite*
}
for pair in manylinux2014_x86_64:manylinux-x86_64 manylinux2014_aarch64:manylinux-aarch64 win_amd64:x86_64-windows; do
  from_wheel "${pair%%:*}" "${pair##*:}" || exit 1
done
trap 'tests/portability/wine.sh "$build" stop' EXIT
tests/portability/wine.sh "$build" start >"$build/wine.log" 2>&1 || { tail "$build/wine.log"; exit 1; }

export WINE_FOLDER=$build CAPI_PYTHON=$PWD/.venv/bin/python CAPI_PEER=$peers/manylinux-x86_64/capi_peer
export CAPI_PEER_WINDOWS=$peers/x86_64-windows/capi_peer.exe CAPI_PEER_ARM64=$peers/manylinux-aarch64/capi_peer
export BIMETAL_LITE_WINDOWS=$peers/x86_64-windows/bimetal_lite.exe BIMETAL_LITE=$peers/manylinux-x86_64/bimetal_lite
export BIMETAL_LITE_ARM64=$peers/manylinux-aarch64/bimetal_lite
if [ -x build/bimetal ]; then export BIMETAL=$PWD/build/bimetal; fi  # whose job is watched
export WINDOWS_TEST_PROGRAMS=$build/library-x86_64-windows/launcher
PYTHONPATH=$peers/manylinux-x86_64/wheel unittest_file 900 tests/portability/test_library_peers.py
unittest_file 900 tests/wheels/test_three_systems.py
unittest_file 900 tests/portability/test_windows_launch.py
unittest_file 900 tests/portability/test_lite.py
scripts/install_ray.sh || exit 1
unittest_file 1800 tests/install/test_ray_wheels.py
unittest_file 900 tests/install/test_wheels.py Wheels Installed  # TooOld is for torch 2.3: test_wheel_versions.sh
# What torch builds on a back end, on the half of the package that these wheels are.
export PYTHONPATH=$peers/manylinux-x86_64/wheel OMP_NUM_THREADS=1
for topic in model_parallel profile; do unittest_file 900 "tests/python/test_$topic.py"; done
closing_line "${BIMETAL_COUNTS:+wheels}" "$passed" "$failed" "$skipped"
