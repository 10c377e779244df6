#!/usr/bin/env bash
# test_serial.sh BUILD_FOLDER jobs|servers|backend: the tests that start whole jobs and watch processes come and go,
# one at a time, so that they don't starve. servers: jobs with parameter servers; backend: those of process groups
# alone, by MPI, across networks, under torch.distributed and Horovod's API. Ends with a line that counts them.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
. scripts/ctest_suite.sh
. scripts/closing_line.sh

case $2 in
  jobs) which=(-L 'fault|serial' -LE 'servers|backend') ;;
  servers | backend) which=(-L "$2") ;;
  *) echo "test_serial.sh: '$2' is neither jobs nor servers nor backend" >&2; exit 2 ;;
esac
suite "$2" "$build" "${which[@]}"
rerun_failed "$build" 0
closing_line "${BIMETAL_COUNTS:+$2}" "$passed" "$failed" "$skipped"
