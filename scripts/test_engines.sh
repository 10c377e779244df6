#!/usr/bin/env bash
# test_engines.sh BUILD_FOLDER: the tests that need the engines themselves: sshd, Slurm. Installs those
# that are missing; none is left running. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
. scripts/install_packages.sh

# Only as root, since the tests need that, too; one whose engine is missing says so by its name.
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  # Daemons that Debian would start at once are for the tests to start, on loopback and as they need them.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  # Avahi is for network.share.Discovery, which is skipped until it is there.
  install_packages openssh-server openssh-client slurm-wlm munge iproute2 avahi-daemon dbus libavahi-compat-libdnssd1 || true
fi

scripts/run_tests.py engines "$build" --name engines
