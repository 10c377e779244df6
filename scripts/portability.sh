#!/usr/bin/env bash
# portability.sh core|program: core builds the torch-free core for Windows and ARM64 Linux, and lets processes
# of those systems form groups with native ones; program builds core and whole program for macOS, and what
# joins NCCL. Installs what it needs; everything else lies in build-portability. Ends with
# a line that counts. docs/portability.md
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
here=tests/portability
build=build-portability
part_of_all=${1:-}
passed=0 failed=0 skipped=0

case $part_of_all in
  core | program) ;;
  *) echo "usage: scripts/portability.sh core|program" >&2; exit 2 ;;
esac
if ! command -v apt-get >/dev/null; then
  echo "make portability needs Debian or its like: compilers, libraries, Wine and qemu are its packages"
  exit 1
fi
mkdir -p "$build"
child=
if [ "$part_of_all" = core ]; then trap '"$here/wine.sh" "$build" stop' EXIT; fi
trap 'interrupt 130' INT
trap 'interrupt 143' TERM HUP

# A test and all that it has started, in a process group of its own, ends before this script does.
interrupt() {
  if [ -n "$child" ]; then
    kill -TERM -- "-$child" 2>/dev/null
    wait "$child"
  fi
  exit "$1"
}

# part NAME COMMAND…: one test. Status 77 is a skip, whose reason is the last line that it printed.
part() {
  local name=$1 status began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  setsid "$@" >"$build/log" 2>&1 &
  child=$!
  wait "$child"
  status=$?
  child=
  case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)); printf 'skipped: %s: ' "$name" ;;
    *) failed=$((failed + 1)); tail -n 60 "$build/log"; printf 'failed: %s: ' "$name" ;;
  esac
  printf '%s (%d s)\n' "$(tail -n 1 "$build/log")" $((SECONDS - began))
  return $status
}

# ready NAME COMMAND…: what the tests need; counts only where it fails.
ready() {
  if part "$@"; then passed=$((passed - 1)); fi
}

ready "tools for other systems" "$here/tools.sh" "$build"
ready "libraries from Debian, pinned" "$here/sources.sh" "$build"

if [ "$part_of_all" = program ]; then
  ready "torch for macOS" "$here/torch_for_macos.sh" "$build"
  part "core and fabric_peer for aarch64-macos" "$here/build_for.sh" "$build" aarch64-macos fabric_peer
  part "the whole program for macOS, linked with torch's wheel" "$here/build_for.sh" "$build" aarch64-macos bimetal
  part "the program's wheel for macOS" scripts/program_wheel.sh macos
  part "what joins NCCL, compiled" "$here/vendor_nccl.sh" "$build"
  closing_line "portability of the program" "$passed" "$failed" "$skipped"
  exit
fi

ready "Wine" "$here/wine.sh" "$build" start
for system in native x86_64-windows aarch64-linux; do
  part "core and fabric_peer for $system" "$here/build_for.sh" "$build" "$system" fabric_peer
done
part "Adam's numbers on ARM64" qemu-aarch64-static -L /usr/aarch64-linux-gnu \
  "$build/aarch64-linux/tests/portability/adam_numbers"
export PYTHONDONTWRITEBYTECODE=1 WINE_FOLDER=$PWD/$build
export FABRIC_PEER=$build/native/tests/portability/fabric_peer
export FABRIC_PEER_WINDOWS=$build/x86_64-windows/tests/portability/fabric_peer.exe
export FABRIC_PEER_ARM64=$build/aarch64-linux/tests/portability/fabric_peer
for world in $(python3 "$here/test_mixed_worlds.py" --list); do
  part "one group: $world" python3 "$here/test_mixed_worlds.py" "MixedWorlds.$world"
done

closing_line portability "$passed" "$failed" "$skipped"
