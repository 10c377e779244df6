#!/usr/bin/env bash
# Installs what a build needs and creates .venv with the pinned torch. Safe to run again: what is
# there already is left alone, so the second run takes a second and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_packages.sh

TORCH_VERSION=2.13.0
APT_PACKAGES=(g++ cmake ninja-build ccache git python3-dev python3-venv
  libasio-dev libsodium-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  zlib1g-dev libgtest-dev libgmock-dev dataset-fashion-mnist
  # Both kinds of MPI, for the tests of that transport alone: 14 MB, and nothing else can stand in for them.
  openmpi-bin mpich)
BREW_PACKAGES=(cmake ninja ccache asio libsodium fmt cli11 tomlplusplus nlohmann-json googletest)

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
  install_packages "${APT_PACKAGES[@]}"
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
# Read back our files with their own library, and draw the README's picture.
if ! .venv/bin/python -c "import safetensors, tensorboard, matplotlib" 2>/dev/null; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" safetensors tensorboard matplotlib
fi

# What the tests of the Python package use it with, those of searches, and those of data at a URL.
if ! .venv/bin/python -c "import accelerate, lightning, optuna, fsspec, aiohttp" 2>/dev/null; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" accelerate lightning \
    "optuna>=4" "fsspec[http]" \
    ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
fi

# macOS and others without Debian's package: the data set itself, checked against known sums.
if [ ! -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]; then
  scripts/fetch_fashion_mnist.sh
fi
