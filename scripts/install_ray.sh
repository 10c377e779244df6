#!/usr/bin/env bash
# Installs Ray into .venv, for bimetal.ray and its tests (docs/ray.md). Apart from setup.sh: it is large, and
# nobody else needs it. [train]: for TorchTrainer. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
RAY_VERSION=2.60.0

if ! .venv/bin/python -c "import pyarrow, ray, sys; sys.exit(ray.__version__ != '$RAY_VERSION')" 2>/dev/null; then
  echo "Installing Ray $RAY_VERSION into .venv" >&2
  # torch as it is: pip must not replace it. Plain ray: [default] brings a dashboard that listens everywhere.
  torch=$(.venv/bin/python -c 'import torch; print(torch.__version__.split("+")[0])')
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$torch" "ray[train]==$RAY_VERSION" \
    ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
fi
