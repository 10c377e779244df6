#!/usr/bin/env bash
# portability.sh: builds the torch-free core for Windows, macOS and ARM64 Linux, and lets processes of
# these systems form groups with Linux ones. Installs what it needs (Debian). Ends with a line that
# counts; what cannot be done here is skipped by name.
#
# Unfinished: it has not been run to its end yet, so no make target and no CI run calls it
# (docs/architecture.md, "What has been run where").
set -uo pipefail
cd "$(dirname "$0")/.."
here=tests/portability
build=build-portability
passed=0 failed=0 skipped=0
mkdir -p "$build"

# part NAME COMMAND…: one test. Status 77 is a skip, whose reason is the last line that it printed.
part() {
  local name=$1 status
  shift
  printf '\n== %s\n' "$name"
  "$@" >"$build/log" 2>&1
  status=$?
  case $status in
    0) passed=$((passed + 1)); tail -n 1 "$build/log" ;;
    77) skipped=$((skipped + 1)); printf 'skipped: %s: %s\n' "$name" "$(tail -n 1 "$build/log")" ;;
    *) failed=$((failed + 1)); tail -n 60 "$build/log"; printf 'failed: %s\n' "$name" ;;
  esac
  return $status
}

part "tools for other systems" "$here/tools.sh" "$build"
part "libraries' sources (Debian, pinned)" "$here/sources.sh" "$build"
for system in x86_64-windows aarch64-macos aarch64-linux; do
  part "core and fabric_peer for $system" "$here/build_for.sh" "$build" "$system"
done
part "core and fabric_peer for this system" "$here/build_for.sh" "$build" native

export FABRIC_PEER=$build/native/tests/portability/fabric_peer
export FABRIC_PEER_WINDOWS=$build/x86_64-windows/tests/portability/fabric_peer.exe
export FABRIC_PEER_ARM64=$build/aarch64-linux/tests/portability/fabric_peer
export WINEPREFIX=$PWD/$build/wine WINE=/usr/lib/wine/wine64
for world in $(python3 "$here/test_mixed_worlds.py" --list); do
  part "one group: $world" python3 "$here/test_mixed_worlds.py" "MixedWorlds.$world"
done
if [ -x "$WINE" ]; then wineserver-stable -k 2>/dev/null; fi

printf '\nportability: %d passed, %d failed' "$passed" "$failed"
[ "$skipped" -gt 0 ] && printf ', %d skipped' "$skipped"
printf '\n'
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
