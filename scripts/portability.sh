#!/usr/bin/env bash
# portability.sh: builds the torch-free core for Windows, macOS and ARM64 Linux, and lets processes of
# those systems that can run here form groups with Linux ones. Installs what it needs; everything
# else lies in build-portability. Ends with a line that counts. docs/portability.md
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
here=tests/portability
build=build-portability
passed=0 failed=0 skipped=0

if ! command -v apt-get >/dev/null; then
  echo "make portability needs Debian or its like: compilers, libraries, Wine and qemu are its packages"
  exit 1
fi
mkdir -p "$build"
child=
trap '"$here/wine.sh" "$build" stop' EXIT
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
ready "Wine" "$here/wine.sh" "$build" start
ready "torch for macOS" "$here/torch_for_macos.sh" "$build"

for system in native x86_64-windows aarch64-linux aarch64-macos; do
  part "core and fabric_peer for $system" "$here/build_for.sh" "$build" "$system" fabric_peer
done
part "the whole program for macOS, linked with torch's wheel" "$here/build_for.sh" "$build" aarch64-macos bimetal
part "what joins NCCL, compiled" "$here/vendor_nccl.sh" "$build"
export PYTHONDONTWRITEBYTECODE=1 WINE_FOLDER=$PWD/$build
export FABRIC_PEER=$build/native/tests/portability/fabric_peer
export FABRIC_PEER_WINDOWS=$build/x86_64-windows/tests/portability/fabric_peer.exe
export FABRIC_PEER_ARM64=$build/aarch64-linux/tests/portability/fabric_peer
for world in $(python3 "$here/test_mixed_worlds.py" --list); do
  part "one group: $world" python3 "$here/test_mixed_worlds.py" "MixedWorlds.$world"
done

closing_line portability "$passed" "$failed" "$skipped"
