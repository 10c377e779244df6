#!/usr/bin/env bash
# build_for.sh FOLDER SYSTEM PROGRAM: builds the program, fabric_peer or bimetal (with the package's torch library), with what it
# stands on, for x86_64-windows, aarch64-macos, aarch64-linux or (with this machine's own compiler and
# libraries) native, into FOLDER/SYSTEM; then checks what it is. PROGRAM library builds the shared library
# of the C interface instead, fully optimised, into FOLDER/library-SYSTEM, capi_peer, which uses it, and bimetal_lite: for
# manylinux-x86_64, manylinux-aarch64, macos11-aarch64 and x86_64-windows.
set -euo pipefail
folder=$(realpath "$1")
system=$2
program=$3
cd "$(dirname "$0")/../.."
here=$PWD/tests/portability
build=$folder/$system
common=(-G Ninja -DCMAKE_BUILD_TYPE=Release)
torch=OFF

case $system in
  native) cross=() ;;
  aarch64-linux) cross=(--toolchain "$PWD/cmake/toolchains/gcc-$system.cmake") ;;
  *)
    export ZIG=$folder/zig/ziglang ZIG_GLOBAL_CACHE_DIR=$folder/zig-cache ZIG_LOCAL_CACHE_DIR=$folder/zig-cache
    # ccache does not help: Zig is no compiler that it knows.
    cross=(--toolchain "$PWD/cmake/toolchains/zig-$system.cmake" -DBIMETAL_CCACHE=OFF) ;;
esac

# library NAME CHECK [options]: cross-built from its source package, once.
library() {
  local name=$1 file=$2
  shift 2
  if [ -e "$libraries/$file" ]; then return; fi
  cmake -S "$here/$name" -B "$folder/$name-$system" "${common[@]}" "${cross[@]}" \
    -DCMAKE_INSTALL_PREFIX="$libraries" "$@"
  cmake --build "$folder/$name-$system"
  cmake --install "$folder/$name-$system"
}

if [ "$system" != native ]; then
  libraries=$folder/libraries/$system
  roots=$libraries
  library sodium lib/libsodium.a -DSODIUM_SOURCE="$folder/libsodium"
  if [ "$system" = aarch64-macos ]; then
    library zlib lib/libz.a -DZLIB_SOURCE="$folder/zlib"
    torch=ON
    roots="$roots;$folder/torch-macos/torch"
    cross+=(-DTorch_DIR="$folder/torch-macos/torch/share/cmake/Torch")
    # In a wheel the program lies beside torch's folder; where this machine has torch's files is nobody's business. Said when it is linked,
    # since the linker's signature covers it.
    cross+=(-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH=@loader_path/../torch/lib)
  fi
  cp -ru --preserve=timestamps "$folder/headers/." "$libraries/include/"
  cross+=(-DCMAKE_FIND_ROOT_PATH="$roots" -DCMAKE_PREFIX_PATH="$libraries")
  # Several sources in one compilation, and what only meets others here is lightly optimised: what takes time
  # are the headers. toml++ refuses a system whose <cfloat> says nothing of FLT_RADIX, as macOS' does with
  # Zig's headers.
  optimised=-O1
  # Where the linker takes no list of names to show, all but those of the C interface are hidden one by one.
  if [ "$program-$system" = library-macos11-aarch64 ] || [ $torch = ON ]; then
    cross+=(-DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_C_VISIBILITY_PRESET=hidden -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON)
  fi
  if [ "$program" = library ]; then
    optimised="-O2 -ffunction-sections -fdata-sections" build=$folder/library-$system
    cross+=(-DBIMETAL_LITE=ON)
  fi
  cross+=(-DCMAKE_UNITY_BUILD=ON "-DCMAKE_CXX_FLAGS_RELEASE=$optimised -DNDEBUG -DTOML_DISABLE_ENVIRONMENT_CHECKS")
  for package in fmt CLI11 nlohmann_json tomlplusplus; do
    cross+=(-D"${package}_DIR=$here/packages")
  done
fi

cmake -S . -B "$build" "${common[@]}" "${cross[@]}" -DBIMETAL_TORCH=$torch -DBIMETAL_PYTHON=$torch -DBIMETAL_TESTS=OFF \
  -DBIMETAL_FABRIC_PEER=ON -DBIMETAL_FABRIC_BENCH=OFF -DBIMETAL_INSTALL=OFF
case $program in
  fabric_peer)
    cmake --build "$build" --target fabric_peer adam_numbers
    file=$build/tests/portability/fabric_peer
    loaded=() ;;
  library)
    targets=(bimetal_capi bimetal_lite)
    if [ "$system" != macos11-aarch64 ]; then targets+=(capi_peer); fi
    if [ "$system" = x86_64-windows ]; then targets+=(launched_rank console_user); fi
    cmake --build "$build" --target "${targets[@]}" -j "${JOBS:-$(nproc)}"
    python3 "$here/check_library.py" "$system" "$build/capi"
    file=$build/capi/bimetal_lite
    loaded=() ;;
  bimetal)
    cmake --build "$build" --target bimetal bimetal_python
    python3 "$here/check_program.py" "$system" "$build/bimetal"
    python3 "$here/check_library.py" "$system" "$build/python/bimetal"
    file=$build/bimetal-torch
    loaded=(libtorch.dylib libtorch_cpu.dylib libc10.dylib) ;;
esac
if [ "$system" = x86_64-windows ]; then file+=.exe; fi
python3 "$here/check_program.py" "$system" "$file" "${loaded[@]}"
