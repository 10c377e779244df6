#!/usr/bin/env bash
# wine.sh FOLDER start | run PROGRAM… | stop: a Wine of that folder alone. Its server stays between
# start and stop, so that programs start at once; after stop nothing of it runs, and nothing lies
# outside the folder.
set -euo pipefail
folder=$(realpath "$1")
command=$2
shift 2
wine=/usr/lib/wine/wine64
server=/usr/lib/wine/wineserver64
export WINEPREFIX=$folder/wine WINEARCH=win64 WINEDEBUG=-all DISPLAY=
export WINEDLLOVERRIDES='winemenubuilder.exe,mscoree,mshtml='  # no desktop entries, no downloads
export HOME=$folder/wine-home  # what it links as the user's folders

start() {
  if [ ! -x "$wine" ] || [ ! -x "$server" ]; then
    echo "no wine64 here"
    exit 77
  fi
  mkdir -p "$HOME"
  if [ ! -e "$WINEPREFIX/complete" ]; then
    rm -rf "$WINEPREFIX"
    "$wine" wineboot --init </dev/null
    "$server" --wait
    touch "$WINEPREFIX/complete"
  fi
  "$server" --kill 2>/dev/null || true  # one that a killed run has left
  "$server" --wait || true
  "$server" --persistent >/dev/null 2>&1  # it stays, and must not keep the log open
  "$wine" cmd /c ver </dev/null
}

# The server's sockets lie in a folder that is named after the file system and inode of the prefix.
stop() {
  local sockets
  if [ ! -d "$WINEPREFIX" ]; then return; fi
  "$server" --kill 2>/dev/null || true
  "$server" --wait || true
  sockets=/tmp/.wine-$(id -u)
  # shellcheck disable=SC2046
  rm -rf "$sockets/$(printf 'server-%x-%x' $(stat -c '%d %i' "$WINEPREFIX"))"
  rmdir "$sockets" 2>/dev/null || true
}

case $command in
  start) start ;;
  run) exec "$wine" "$@" ;;
  stop) stop ;;
  *) echo "wine.sh: no command $command"; exit 2 ;;
esac
