#!/usr/bin/env bash
# tools.sh FOLDER: installs the compilers for other systems and what runs their programs here. Zig
# comes from PyPI, for this folder alone; the rest from Debian. What cannot be installed is said; the
# tests that need it skip themselves by name.
set -euo pipefail
ZIG_VERSION=0.17.1
folder=$1
packages=(g++-aarch64-linux-gnu qemu-user-static wine64 dpkg-dev libasio-dev libfmt-dev cmake ninja-build)

if command -v apt-get >/dev/null 2>&1; then
  missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
    lock=(-o DPkg::Lock::Timeout=300)
    "${as_root[@]}" apt-get "${lock[@]}" update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" \
      apt-get "${lock[@]}" install -y -qq --no-install-recommends "${missing[@]}"
  fi
else
  echo "no apt-get here: without Wine and qemu their tests are skipped"
fi

zig=$folder/zig/ziglang/zig
if [ "$("$zig" version 2>/dev/null)" != "$ZIG_VERSION" ]; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    --target "$folder/zig" --upgrade "ziglang==$ZIG_VERSION"
fi
echo "zig $("$zig" version)"
