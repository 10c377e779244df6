#!/usr/bin/env bash
# sources.sh FOLDER: the libraries that the core needs, from Debian: libsodium's source package (with
# Debian's patches), and the headers of Asio and fmt, which are all there is of them. Upstream's
# archive is checked against the sum below, so that no other version slips in.
set -euo pipefail
SODIUM_VERSION=1.0.18
SODIUM_SHA256=d59323c6b712a1519a5daf710b68f5e7fde57040845ffec53850911f10a5d4f4
folder=$(realpath "$1")

if ! command -v apt-get >/dev/null 2>&1; then
  echo "the sources come from Debian's archive, and there is no apt-get here"
  exit 77
fi

headers() {
  local package=$1 path=$2
  mkdir -p "$folder/headers"
  if ! dpkg -L "$package" | grep -q "^/usr/include/$path"; then
    echo "$package has no /usr/include/$path"
    return 1
  fi
  cp -r "/usr/include/$path" "$folder/headers/"
}
headers libasio-dev asio
headers libasio-dev asio.hpp
headers libfmt-dev fmt

if [ ! -e "$folder/libsodium/configure.ac" ]; then
  # Source packages are looked for where the binary ones come from, by lists of our own: the
  # machine's stay as they are.
  lists=$folder/apt
  mkdir -p "$lists/sources" "$lists/lists/partial" "$lists/cache"
  for list in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
    [ -e "$list" ] || continue
    case $list in
      *.sources) sed 's/^Types: deb$/Types: deb-src/' "$list" >"$lists/sources/src.sources" ;;
      *) sed -n 's/^deb /deb-src /p' "$list" >"$lists/sources/src.list" ;;
    esac
  done
  options=(-o "Dir::Etc::sourceparts=$lists/sources" -o Dir::Etc::sourcelist=/dev/null
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update -qq
  cd "$lists"
  apt-get "${options[@]}" source -qq --download-only libsodium
  archive=libsodium_$SODIUM_VERSION.orig.tar.gz
  if ! echo "$SODIUM_SHA256  $archive" | sha256sum --check --quiet; then
    echo "Debian's libsodium here is not $SODIUM_VERSION as pinned in $0: $(ls libsodium_*.dsc)"
    exit 1
  fi
  rm -rf "$folder/libsodium"
  dpkg-source --extract libsodium_$SODIUM_VERSION-*.dsc "$folder/libsodium"
fi
echo "libsodium $SODIUM_VERSION, Asio $(dpkg-query -W -f='${Version}' libasio-dev), fmt $(dpkg-query -W -f='${Version}' libfmt-dev)"
