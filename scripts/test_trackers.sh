#!/usr/bin/env bash
# test_trackers.sh BUILD_FOLDER: a job's figures in the trackers that people have (docs/trackers.md), which it installs into an
# environment of their own below the build folder: they want other releases of what other tests use. Needs no network once that is
# there. Ends with a line that counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$PWD/$1/trackers
if [ ! -x "$place/bin/python" ] || ! "$place/bin/python" -c 'import trackio, wandb, mlflow, tensorboard' 2>/dev/null; then
  python3 -m venv "$place"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check trackio==0.43.0 wandb==0.31.0 mlflow==3.17.2 tensorboard==2.21.0
fi

set +e
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export BIMETAL=$PWD/$1/bimetal BIMETAL_TRACKERS_PYTHON=$place/bin/python
unittest_file 900 tests/fault/test_trackers.py
closing_line "${BIMETAL_COUNTS:+tests with trackers}" "$passed" "$failed" "$skipped"
