#!/usr/bin/env bash
# build.sh FOLDER PRESET TARGET [JOBS]: configures once, then builds what changed of one target.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 preset=$2 target=$3 jobs=${4:-}

if [ ! -e "$build/build.ninja" ]; then
  cmake --preset "$preset" -B "$build" >"/tmp/bimetal-configure.$$" 2>&1 || {
    cat "/tmp/bimetal-configure.$$" >&2
    rm -f "/tmp/bimetal-configure.$$"
    exit 1
  }
  rm -f "/tmp/bimetal-configure.$$"
fi
cmake --build "$build" --target "$target" ${jobs:+-j "$jobs"}
