#!/usr/bin/env bash
# build.sh FOLDER PRESET [JOBS]: configures once, then builds what changed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 preset=$2 jobs=${3:-}

if [ ! -e "$build/build.ninja" ]; then
  cmake --preset "$preset" -B "$build" >"/tmp/bimetal-configure.$$" 2>&1 || {
    cat "/tmp/bimetal-configure.$$" >&2
    rm -f "/tmp/bimetal-configure.$$"
    exit 1
  }
  rm -f "/tmp/bimetal-configure.$$"
fi
cmake --build "$build" ${jobs:+-j "$jobs"}
