#!/usr/bin/env bash
# test_deepspeed.sh BUILD_FOLDER: DeepSpeed itself, as it is, on the backend (docs/deepspeed.md). Installs it into an
# environment of its own below the build folder, on top of the packages of .venv, whose torch the backend is built for.
# Ends with a line that counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
DEEPSPEED_VERSION=0.19.8
environment=$PWD/$1/deepspeed

if ! "$environment/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('deepspeed') != '$DEEPSPEED_VERSION')" 2>/dev/null; then
  echo "Installing DeepSpeed $DEEPSPEED_VERSION into $environment" >&2
  .venv/bin/python -m venv --clear "$environment"
  below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  above=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$below" >"$above/below.pth"
  # torch stays what it is, and nothing is compiled: its kernels are for other optimizers than torch's.
  torch=$(.venv/bin/python -c 'import torch; print(torch.__version__)')
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check setuptools wheel  # what its sources are built by
  DS_BUILD_OPS=0 "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    "torch==$torch" "deepspeed==$DEEPSPEED_VERSION"
fi

set +e
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export PYTHONPATH=$PWD/$1/python PYTHON=$environment/bin/python
unittest_file 600 tests/deepspeed/test_engine.py
closing_line "${BIMETAL_COUNTS:+tests with DeepSpeed}" "$passed" "$failed" "$skipped"
