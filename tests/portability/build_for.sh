#!/usr/bin/env bash
# build_for.sh FOLDER SYSTEM: the torch-free core and fabric_peer, for x86_64-windows, aarch64-macos,
# aarch64-linux or (with this machine's own compiler and libraries) native.
set -euo pipefail
folder=$(realpath "$1")
system=$2
cd "$(dirname "$0")/../.."
common=(-G Ninja -DCMAKE_BUILD_TYPE=Release)

case $system in
  native) cross=() ;;
  aarch64-linux)
    if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
      echo "no aarch64-linux-gnu-g++ here"
      exit 77
    fi
    cross=(--toolchain "$PWD/cmake/toolchains/gcc-$system.cmake") ;;
  *)
    export ZIG=$folder/zig/ziglang ZIG_GLOBAL_CACHE_DIR=$folder/zig-cache ZIG_LOCAL_CACHE_DIR=$folder/zig-cache
    if [ ! -x "$ZIG/zig" ]; then
      echo "no zig here"
      exit 77
    fi
    cross=(--toolchain "$PWD/cmake/toolchains/zig-$system.cmake" -DBIMETAL_CCACHE=OFF) ;;  # zig has its own cache
esac

if [ "$system" != native ]; then
  libraries=$folder/libraries/$system
  if [ ! -e "$libraries/lib/libsodium.a" ]; then
    cmake -S tests/portability/sodium -B "$folder/sodium-$system" "${common[@]}" "${cross[@]}" \
      -DSODIUM_SOURCE="$folder/libsodium" -DCMAKE_INSTALL_PREFIX="$libraries"
    cmake --build "$folder/sodium-$system"
    cmake --install "$folder/sodium-$system"
  fi
  cp -r "$folder/headers/." "$libraries/include/"
  cross+=(-DCMAKE_FIND_ROOT_PATH="$libraries" -DCMAKE_PREFIX_PATH="$libraries"
    -Dfmt_DIR="$PWD/tests/portability/fmt")
fi

cmake -S . -B "$folder/$system" "${common[@]}" "${cross[@]}" -DBIMETAL_TORCH=OFF -DBIMETAL_TESTS=OFF \
  -DBIMETAL_FABRIC_PEER=ON -DBIMETAL_INSTALL=OFF
cmake --build "$folder/$system"

program=$folder/$system/tests/portability/fabric_peer
[ "$system" = x86_64-windows ] && program+=.exe
# The first bytes tell what it was built for.
magic=$(head -c 4 "$program" | od -An -tx1 | tr -d ' ')
case $system:$magic in
  x86_64-windows:4d5a*) what="a Windows program" ;;
  aarch64-macos:cffaedfe) what="a macOS program" ;;
  aarch64-linux:7f454c46 | native:7f454c46) what="a Linux program" ;;
  native:cffaedfe) what="a macOS program" ;;
  *) echo "$program begins with $magic, which is no program for $system"; exit 1 ;;
esac
echo "$program: $what of $(stat -c %s "$program") bytes"
