#!/usr/bin/env bash
# setup.sh [tests]: installs what a build needs and creates .venv with the pinned torch; with tests, also
# what the tests use the program with. Safe to run again: what is there already is left alone, so the second
# run takes a second and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_packages.sh

TORCH_VERSION=2.13.0
APT_PACKAGES=(g++ cmake ninja-build ccache mold git python3-dev python3-venv
  libasio-dev libsodium-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  zlib1g-dev libjpeg-dev libpng-dev libgtest-dev libgmock-dev dataset-fashion-mnist)
# Both kinds of MPI: nothing else can stand in for them.
APT_TEST_PACKAGES=(openmpi-bin mpich iptables)
# What reads our files back with their own library and draws the README's picture; what the Python package,
# searches, and data at a URL are used with.
PIP_TEST_PACKAGES=(safetensors tensorboard matplotlib transformers accelerate peft lightning "optuna>=4" "fsspec[http]")
BREW_PACKAGES=(cmake ninja ccache asio libsodium fmt cli11 tomlplusplus nlohmann-json jpeg-turbo libpng googletest)

for_tests=
case ${1:-} in
  '') ;;
  tests) for_tests=yes ;;
  *) echo "usage: scripts/setup.sh [tests]" >&2; exit 2 ;;
esac

say() { printf '%s\n' "$*" >&2; }

install_homebrew() {
  local missing=() package
  for package in "${BREW_PACKAGES[@]}"; do
    brew list --formula "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "Installing Homebrew packages: ${missing[*]}"
  brew install --quiet "${missing[@]}"
}

if command -v apt-get >/dev/null 2>&1; then
  install_packages "${APT_PACKAGES[@]}" ${for_tests:+"${APT_TEST_PACKAGES[@]}"}
elif command -v brew >/dev/null 2>&1; then
  install_homebrew
else
  say "No apt-get and no Homebrew here: CMake will fetch the C++ libraries; a compiler, CMake ≥ 3.25, Ninja, zlib and Python ≥ 3.10 must be installed already."
fi

# The venv is checked by importing torch, so that one that was interrupted half-way is completed.
if ! .venv/bin/python -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH_VERSION')" 2>/dev/null; then
  say "Creating .venv with torch $TORCH_VERSION "
  "${PYTHON:-python3}" -m venv .venv
  # On Linux without an NVIDIA card, BIMETAL_TORCH_INDEX=<PyTorch's CPU wheel index> saves gigabytes.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" numpy \
    ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
fi
if [ -n "$for_tests" ] && ! .venv/bin/python -c "
import importlib.util as util, sys
wanted = 'safetensors tensorboard matplotlib transformers accelerate peft lightning optuna fsspec aiohttp'
sys.exit(not all(map(util.find_spec, wanted.split())))"; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" "${PIP_TEST_PACKAGES[@]}" \
    ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
fi

# macOS and others without Debian's package: the data set itself, checked against known sums.
if [ ! -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]; then
  scripts/fetch_fashion_mnist.sh
fi
