#!/usr/bin/env bash
# tools.sh FOLDER: installs the compilers for other systems and what runs their programs here. Zig
# comes from PyPI, for this folder alone; the rest from Debian.
set -euo pipefail
ZIG_VERSION=0.17.1
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."
. scripts/install_packages.sh

install_packages cmake ninja-build g++ ccache python3-venv libsodium-dev \
  g++-aarch64-linux-gnu qemu-user-static wine64 dpkg-dev advancecomp \
  libasio-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev

if [ ! -x "$folder/venv/bin/pip" ]; then python3 -m venv --clear "$folder/venv"; fi
zig=$folder/zig/ziglang/zig
if [ "$("$zig" version 2>/dev/null)" != "$ZIG_VERSION" ]; then
  rm -rf "$folder/zig"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    --target "$folder/zig" "ziglang==$ZIG_VERSION"
fi
echo "zig $("$zig" version), $(aarch64-linux-gnu-g++ --version | head -n 1), $(/usr/lib/wine/wine64 --version)"
