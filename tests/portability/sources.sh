#!/usr/bin/env bash
# sources.sh FOLDER: the libraries that the program needs, from Debian: the source packages (with
# Debian's patches) of those that are compiled, and the headers of those that are headers alone.
# Upstream's archives are checked against the sums below, so that no other version slips in.
set -euo pipefail
folder=$(realpath "$1")

# headers PACKAGE VERSION PATH…: what the package has in /usr/include, into FOLDER/headers.
headers() {
  local package=$1 wanted=$2 version path
  shift 2
  version=$(dpkg-query -W -f='${Version}' "$package")
  case $version in
    "$wanted"*) ;;
    *) echo "$package here is $version, not $wanted as pinned in $0"; return 1 ;;
  esac
  mkdir -p "$folder/headers"
  for path in "$@"; do
    rm -rf "$folder/headers/$path"
    cp -r --preserve=timestamps "/usr/include/$path" "$folder/headers/"  # or all is built anew
  done
}

# Source packages are looked for where the binary ones come from, by lists of our own: the machine's
# stay as they are.
apt_lists() {
  local list
  lists=$folder/apt
  apt_options=(-o "Dir::Etc::sourceparts=$lists/sources" -o Dir::Etc::sourcelist=/dev/null
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
  if [ -d "$lists/cache" ]; then return; fi
  mkdir -p "$lists/sources" "$lists/lists/partial"
  for list in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
    [ -e "$list" ] || continue
    case $list in
      *.sources) sed 's/^Types: .*/Types: deb-src/' "$list" >"$lists/sources/src.sources" ;;
      *) sed -n 's/^deb /deb-src /p' "$list" >"$lists/sources/src.list" ;;
    esac
  done
  apt-get "${apt_options[@]}" update -qq
  mkdir -p "$lists/cache"
}

# source_package NAME VERSION ARCHIVE SHA256: unpacked into FOLDER/NAME.
source_package() {
  local name=$1 version=$2 archive=$3 sum=$4
  if [ -e "$folder/$name/.unpacked-$version" ]; then return; fi
  apt_lists
  (
    cd "$lists"
    rm -f "${name}_"*
    apt-get "${apt_options[@]}" source -qq --download-only "$name"
    if ! echo "$sum  $archive" | sha256sum --check --quiet; then
      echo "Debian's $name here is not $version as pinned in $0: $(ls "${name}_"*.dsc)"
      exit 1
    fi
    rm -rf "${folder:?}/$name"
    dpkg-source --no-copy --extract "${name}_$version"-*.dsc "$folder/$name" >/dev/null 2>&1
    touch "$folder/$name/.unpacked-$version"
  )
}

headers libasio-dev 1:1.22.1 asio asio.hpp
headers libfmt-dev 9.1.0 fmt
headers libcli11-dev 2.1.2 CLI
headers libtomlplusplus-dev 3.3.0 toml++
headers nlohmann-json3-dev 3.11.2 nlohmann
source_package libsodium 1.0.18 libsodium_1.0.18.orig.tar.gz \
  d59323c6b712a1519a5daf710b68f5e7fde57040845ffec53850911f10a5d4f4
source_package zlib 1.2.13.dfsg zlib_1.2.13.dfsg.orig.tar.bz2 \
  71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1
echo "Asio 1.22.1, fmt 9.1.0, CLI11 2.1.2, toml++ 3.3.0, nlohmann-json 3.11.2, libsodium 1.0.18, zlib 1.2.13"
