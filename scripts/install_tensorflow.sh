#!/usr/bin/env bash
# Installs TensorFlow (CPU) into .venv, beside the torch that is there: 270 MB to download, 1.3 GB on
# disk. Only the tests and the example of Horovod's API for Keras need it, so setup.sh leaves it out.
# Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

TENSORFLOW_VERSION=2.21.0

if [ ! -x .venv/bin/python ]; then
  echo "error: there is no .venv yet: run make setup first" >&2
  exit 1
fi
.venv/bin/python -c "
import importlib.metadata as metadata, sys
found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in metadata.distributions()}
sys.exit('$TENSORFLOW_VERSION' not in (found.get('tensorflow-cpu'), found.get('tensorflow')))" && exit

# The wheel without GPU support is there for x86-64 alone; elsewhere the full one has none either.
case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) package=tensorflow-cpu ;;
  *) package=tensorflow ;;
esac
echo "Installing $package $TENSORFLOW_VERSION into .venv" >&2
torch=$(.venv/bin/python -c "import torch; print(torch.__version__.split('+')[0])")
.venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$torch" "$package==$TENSORFLOW_VERSION" \
  ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
