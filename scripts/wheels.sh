#!/usr/bin/env bash
# wheels.sh [TAG…]: the Python package as wheels that fit any torch, into dist/: for each platform the shared library of
# the C interface and what of the program needs no torch, cross-compiled by Zig, and the Python files around it. Without a tag, all of them. docs/install.md
set -euo pipefail
cd "$(dirname "$0")/.."
here=tests/portability
build=build-portability
declare -A systems=(
  [manylinux2014_x86_64]=manylinux-x86_64 [manylinux2014_aarch64]=manylinux-aarch64
  [macosx_11_0_arm64]=macos11-aarch64 [win_amd64]=x86_64-windows)
libraries=(so so dylib dll)
tags=(manylinux2014_x86_64 manylinux2014_aarch64 macosx_11_0_arm64 win_amd64)
wanted=("${@:-${tags[@]}}")

mkdir -p "$build"
"$here/tools.sh" "$build"
"$here/sources.sh" "$build"
for i in "${!tags[@]}"; do
  tag=${tags[$i]}
  case " ${wanted[*]} " in *" $tag "*) ;; *) continue ;; esac
  system=${systems[$tag]}
  "$here/build_for.sh" "$build" "$system" library >"$build/library-$system.log" 2>&1 ||
    { tail -n 40 "$build/library-$system.log"; exit 1; }
  tail -n 2 "$build/library-$system.log"  # the library's line, and the program's
  program=$build/library-$system/capi/bimetal_lite
  if [ "$tag" = win_amd64 ]; then program+=.exe; fi
  python3 scripts/make_wheel.py "$tag" "$build/library-$system/capi/libbimetal_core.${libraries[$i]}" dist "$program"
done
